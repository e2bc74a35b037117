"""One decode rank's process: the real `Consumer` and `Gather`, and around them a scheduler, engines and blocks.

A block is handed to another request the moment the machine closes the epoch; the other request (or the one that
resumed) writes there, so a write that lands from then on destroys something (I3).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from baton.kv_connector.handoff.gather import Flow
from baton.kv_connector.handoff.incoming import BlockReservation, ConsumerTransfer, Phase
from baton.kv_connector.layout.tp_mapping import transfer_id_of_flow
from baton.kv_connector.protocol.messages import Message
from tests.explorer.freeze import in_order
from tests.explorer.rank import Facts, Rank
from tests.explorer.scene import (
    BLOCK_TOKENS,
    FIRST,
    HELLO,
    LONG_AGO,
    NUMBERS,
    SETTINGS,
    Event,
    Machines,
    Scene,
    Submitted,
    accept_all,
    digests,
    first_token,
    place_of,
    prompt_hash,
    right,
    uncounted,
)

AT = " at D"  # a request is named after its transfer


@dataclass(slots=True)
class Wanted:
    """One transfer's request and its block. Content, per prefill rank and layer: empty, unwritten, right, garbage."""

    stage: str = "new"  # watched, prepared, zeroed, over
    cancelled: bool = False
    block: int = 0
    open: bool = False  # between allocation and close: the peer may write here
    content: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)  # what the scheduler has been told


class ConsumerRank(Rank):
    """The machine, its receiving engines and its clock."""

    def __init__(self, scene: Scene, machines: Machines, incarnation: int) -> None:
        self.place = place_of(incarnation)
        self.machine = machines.consumer(
            incarnation=incarnation,
            domains=1,
            settings=SETTINGS,
            pool_blocks=100,
            hello=HELLO,
            check_compatible=accept_all,
            refused=uncounted,
        )
        self.machine._sequence = NUMBERS
        self.gather = machines.gather(self.machine)
        self.scene = scene
        self.engines: list[str] = []  # alive
        self.made = 0
        self.fences: list[str] = []

    def events(self) -> list[Event]:
        """What the engines and the clock may do."""
        found: list[Event] = [("fence", engine) for engine in self.fences]
        machine = self.machine
        if machine.sessions:
            found += [("beat",), *(("silence", peer) for peer in machine.sessions)]
        for flow, transfer in machine.transfers.items():
            if transfer.phase is not Phase.DIRTY:
                found.append(("unanswered" if transfer.phase is Phase.REVOKING else "overdue", flow))
        if set(machine.domains.retired) - set(machine.domains.fencing):
            found += [("tick",), ("quarantine",)]
        return found

    def _on_fence(self, engine: str) -> None:
        self.fences.remove(engine)
        self.engines.remove(engine)
        self.machine.fenced(engine)

    def _on_deliver(self, message: Message) -> None:
        self.machine.receive(place_of(message.sender), message, 0.0)

    def _on_beat(self) -> None:
        """The clock moves by as long as a beat may take; the beat before this one is lost."""
        self.machine._next_beat = 0.0
        self.machine.tick(0.0)
        self.machine.outbox.clear()
        self.machine.tick(SETTINGS.beat_interval_s)

    def _on_tick(self) -> None:
        self.machine._next_beat = 1.0
        self.machine.tick(0.0)

    def _on_quarantine(self) -> None:
        retired = self.machine.domains.retired
        retired.update(dict.fromkeys(retired, LONG_AGO))
        self._on_tick()

    def _on_silence(self, peer: str) -> None:
        self.machine.sessions[peer].last_heard = LONG_AGO
        self._on_tick()

    def _on_overdue(self, flow: str) -> None:
        self.machine.transfers[flow].since = LONG_AGO
        self._on_tick()

    def _on_unanswered(self, flow: str) -> None:
        self.machine.transfers[flow].revoked_at = LONG_AGO
        self._on_tick()

    def _make_engines(self) -> None:
        for domain in self.machine.domains.missing():
            self.made += 1
            name = f"{FIRST[self.place] if self.scene.engine_names_return else self.machine.incarnation}:{self.made}"
            self.engines.append(name)
            self.machine.engine_added(domain, name)

    def forget(self) -> None:
        """Take out what is not looked at again, so that more states are the same."""
        machine, gather = self.machine, self.gather
        for transfer in machine.transfers.values():
            if transfer.phase >= Phase.RESERVED:
                transfer.started = False  # only asked of what is not reserved
        machine.domains._assigned.clear()  # there is one domain
        for declined in machine._declined.values():
            in_order(declined)
        by_name: list[dict[Any, Any]] = [machine.transfers, machine._ids, gather._requests, gather._request_of]
        for table in (*by_name, gather._transfers, machine.sessions, machine.hellos):
            in_order(table)
        in_order(machine.domains.retired)


class DecodeSide(ConsumerRank):
    """State and events of one process; `skip` names transfers that are not asked for (any more)."""

    def __init__(self, scene: Scene, machines: Machines, incarnation: int, skip: tuple[str, ...] = ()) -> None:
        super().__init__(scene, machines, incarnation)
        self.parts = scene.prefill_ranks * scene.layers
        self.skip = skip
        self.wanted = {name: Wanted("over" if name in skip else "new") for name in scene.names}
        self.verifying: list[ConsumerTransfer] = []
        self.may_flip = scene.verify
        self.trouble = ""
        self._make_engines()

    # --- events --------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """What may happen here next, deliveries and landing writes apart."""
        found = [event for name in self.wanted for event in self._events_of(name)]
        if self.verifying:
            found.append(("verify", self.verifying[0].transfer_id))
        return found + super().events()

    def _events_of(self, name: str) -> Iterator[Event]:
        wanted = self.wanted[name]
        if wanted.stage == "new":
            yield "watch", name
        elif wanted.stage != "over" and not wanted.cancelled:
            yield "cancel", name
            if wanted.stage == "watched" and self._block_for(name):
                yield "prepare", name
        if wanted.stage == "prepared":
            yield "zeroed", name
        if self.may_flip and right(name) in wanted.content:
            yield "flip", name

    def apply(self, event: Event) -> list[Submitted]:
        name, *arguments = event
        getattr(self, f"_on_{name}")(*arguments)
        self._make_engines()
        self._hear()
        self._forget()
        return []

    def at_rest(self) -> bool:
        """Whether the scheduler has its answers and nothing is kept for anybody any more."""
        wanted = self.wanted.values()
        answered = all(one.stage in ("new", "over") or one.outcomes for one in wanted)
        kept = any(one.open for one in wanted) or self.machine.transfers or self.machine.domains.retired
        return answered and not kept and not self.verifying

    def _on_watch(self, name: str) -> None:
        self.wanted[name].stage = "watched"
        flows = [Flow(self.scene.flow(name, peer, self.place), peer) for peer in self.scene.prefill]
        self.gather.watch(name, name + AT, flows, self.parts, 0.0)
        self.machine.announce()

    def _on_prepare(self, name: str) -> None:
        wanted = self.wanted[name]
        wanted.block = self._block_for(name)
        wanted.stage, wanted.open, wanted.content = "prepared", True, ["empty"] * self.parts
        self.gather.prepare(name + AT, 1, BlockReservation(BLOCK_TOKENS, 0, [[wanted.block]], prompt_hash(name)), 0.0)

    def _on_zeroed(self, name: str) -> None:
        wanted = self.wanted[name]
        wanted.stage = "zeroed"
        if wanted.open:
            wanted.content = ["empty"] * self.parts
        self.gather.zeroed([name + AT], 0.0)

    def _on_cancel(self, name: str) -> None:
        self.wanted[name].cancelled = True
        self.gather.cancel(name + AT, 0.0)

    def _on_land(self, name: str, block: int, part: int, content: str) -> None:
        wanted = self.wanted[name]
        if not wanted.open or wanted.block != block:
            taken = block in (other.block for other in self.wanted.values())
            by_now = ", to another request by now" if taken else ""
            self.trouble = f"I3: a write landed in a block that had been given back{by_now}"
        elif wanted.content:
            wanted.content[part] = content

    def _on_verify(self, flow: str) -> None:
        transfer = self.verifying.pop(0)  # there is one thread
        assert transfer.commit is not None
        content = self.wanted[transfer_id_of_flow(flow)].content
        wrong = transfer.commit.digests != digests(content)
        waited_for = self.machine.verified(transfer, "wrong" if wrong else "", mismatch=wrong)
        if waited_for and wrong and "flipped" not in content:
            self.trouble = "digest: a mismatch where no byte had flipped"

    def _on_flip(self, name: str) -> None:
        self.may_flip = False
        content = self.wanted[name].content
        content[content.index(right(name))] = "flipped"

    # --- what the machine says -----------------------------------------------------------------------------------

    def _block_for(self, name: str) -> int:
        return self.scene.block_for(name, {wanted.block for wanted in self.wanted.values()})

    def _hear(self) -> None:
        machine, gather = self.machine, self.gather
        gather.collect(0.0)
        self.fences = sorted(self.fences + machine.fences)
        self.verifying += machine.to_verify
        for resolved in gather.resolved:
            outcome = "loaded" if resolved.ok else "failed" if resolved.reserved else "lost"
            name = resolved.request_id.removesuffix(AT)
            self._resolve(name, outcome)
            if resolved.commit and self.scene.samples and resolved.commit.first != first_token(name):
                self.trouble = "I8: the request starts without the token that P sampled, or with another one"
        for request_id in gather.closed:
            wanted = self.wanted[request_id.removesuffix(AT)]
            if not wanted.open:
                self.trouble = self.trouble or "the blocks were given back twice, or were never reserved"
            wanted.open, wanted.block, wanted.content = False, 0, []
        for output in (
            machine.fences,
            machine.to_verify,
            gather.resolved,
            gather.closed,
            gather.started,
            machine.forgotten,
        ):
            output.clear()

    def _resolve(self, name: str, outcome: str) -> None:
        wanted = self.wanted[name]
        # A loss may cross an allocation on the way: then the allocation is answered as well.
        if wanted.stage == "over" or outcome in wanted.outcomes or (wanted.outcomes and wanted.outcomes != ["lost"]):
            self.trouble = f"the request was resolved twice: {wanted.outcomes}, {outcome}"
        wanted.outcomes.append(outcome)
        if outcome != "loaded":
            return
        if "unwritten" in wanted.content:
            self.trouble = "I1: the request resumed on a block that was pushed before it had been written"
        elif "empty" in wanted.content:
            self.trouble = "I4: the request resumed before every layer had arrived"
        elif "flipped" in wanted.content:
            self.trouble = "digest: the request resumed on a flipped byte"
        elif wanted.content != [right(name)] * self.parts:
            self.trouble = "I2: the request resumed on a source block that P no longer held, or on another prompt"

    # --- what makes no difference ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        for wanted in self.wanted.values():
            if wanted.stage == "watched" and wanted.cancelled:
                wanted.stage = "over"  # it never had a block
            elif wanted.stage in ("prepared", "zeroed") and wanted.outcomes:
                wanted.cancelled = True  # it has its answer: a cancel changes nothing, nor does what still arrives
                wanted.content = []
                if not wanted.open:
                    wanted.stage = "over"
            if wanted.stage == "over":
                wanted.cancelled, wanted.outcomes = False, []
        self.forget()

    # --- for local.py --------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        return Facts(
            incarnation=self.incarnation,
            events=tuple(self.events()),
            problem=self.trouble,
            at_rest=self.at_rest(),
            flows=frozenset(self.machine.transfers),
            peers=frozenset(self.machine.sessions),
            engines=tuple(self.engines),
            asked=self.asked(),
            asks=self.asks(),
            started=self.started(),
        )

    def asked(self) -> tuple[str, ...]:
        """Transfers that this process or one before it has asked for."""
        return tuple(name for name, wanted in self.wanted.items() if wanted.stage != "new")

    def asks(self) -> frozenset[str]:
        names = [name for name in self.asked() if name not in self.skip]
        return frozenset(self.scene.flow(name, peer, self.place) for name in names for peer in self.scene.prefill)

    def started(self) -> frozenset[str]:
        """Transfers whose prompts P computes, as far as the scheduler has been told."""
        return frozenset(transfer_id_of_flow(flow) for flow, t in self.machine.transfers.items() if t.started)

    def key(self) -> tuple[Any, ...]:
        """Everything that tells two states apart is in the attributes."""
        return ()
