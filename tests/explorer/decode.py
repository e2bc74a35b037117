"""One decode process: the real `Consumer`, and around it a scheduler, engines and the destination blocks.

A block is handed to another request the moment the machine closes the epoch; the other request (or the one that
resumed) writes there, so a write that lands from then on destroys something (I3).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kv_connector.handoff.consumer import Consumer
from kv_connector.handoff.incoming import Incoming, Phase, Wish
from kv_connector.protocol import Message
from tests.explorer.freeze import in_order
from tests.explorer.scope import (
    FIRST_DECODE,
    HELLO,
    LONG_AGO,
    PEER,
    SETTINGS,
    Event,
    Numbers,
    Scene,
    Submitted,
    accept_all,
    digests,
    prompt_hash,
    right,
)

AT = " at D"  # a request is named after its transfer


@dataclass(slots=True)
class Wanted:
    """One transfer's request and its block. Content, per layer: empty, unwritten, right, garbage."""

    stage: str = "new"  # watched, prepared, zeroed, over
    cancelled: bool = False
    block: int = 0
    open: bool = False  # between allocation and close: the peer may write here
    content: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)  # what the scheduler has been told


class DecodeSide:
    """State and events of one process; `skip` names transfers that are not asked for (any more)."""

    def __init__(self, scene: Scene, machine: type[Consumer], incarnation: int, skip: tuple[str, ...] = ()) -> None:
        self.machine = machine(incarnation=incarnation, domains=1, settings=SETTINGS, hello=HELLO, judge=accept_all)
        self.machine._sequence = Numbers()  # type: ignore[assignment]  # `count` cannot be copied everywhere
        self.scene = scene
        self.engines: list[str] = []  # alive
        self.made = 0
        self.fences: list[str] = []
        self.wanted = {name: Wanted("over" if name in skip else "new") for name in scene.names}
        self.verifying: list[Incoming] = []
        self.may_flip = scene.verify
        self.trouble = ""
        self._make_engines()

    # --- events --------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """What may happen here next, deliveries and landing writes apart."""
        found = [event for name in self.wanted for event in self._events_of(name)]
        if self.verifying:
            found.append(("verify", self.verifying[0].transfer_id))
        found += [("fence", engine) for engine in self.fences]
        machine = self.machine
        if machine.sessions:
            found += [("beat",), ("silence",)]
        for name, transfer in machine.transfers.items():
            if transfer.phase is not Phase.DIRTY:
                found.append(("unanswered" if transfer.phase is Phase.REVOKING else "overdue", name))
        if set(machine.domains.retired) - set(machine.domains.fencing):
            found += [("tick",), ("quarantine",)]
        return found

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
        """Let one event happen."""
        name, *arguments = event
        getattr(self, f"_on_{name}")(*arguments)
        self._make_engines()
        self._hear()
        self._forget()
        return []

    def problem(self) -> str:
        """What is wrong in this state, or ""."""
        return self.trouble

    def at_rest(self) -> bool:
        """Whether the scheduler has its answers and nothing is kept for anybody any more."""
        wanted = self.wanted.values()
        answered = all(one.stage in ("new", "over") or one.outcomes for one in wanted)
        kept = any(one.open for one in wanted) or self.machine.transfers or self.machine.domains.retired
        return answered and not kept and not self.verifying

    def _on_watch(self, name: str) -> None:
        self.wanted[name].stage = "watched"
        self.machine.watch(name, name + AT, PEER, 0.0)
        self.machine.announce()

    def _on_prepare(self, name: str) -> None:
        wanted = self.wanted[name]
        wanted.block = self._block_for(name)
        wanted.stage, wanted.open, wanted.content = "prepared", True, ["empty"] * self.scene.layers
        self.machine.prepare(name + AT, 1, Wish(16, 0, [[wanted.block]], prompt_hash(name)), 0.0)

    def _on_zeroed(self, name: str) -> None:
        wanted = self.wanted[name]
        wanted.stage = "zeroed"
        if wanted.open:
            wanted.content = ["empty"] * self.scene.layers
        self.machine.zeroed([name + AT], 0.0)

    def _on_cancel(self, name: str) -> None:
        self.wanted[name].cancelled = True
        self.machine.cancel(name + AT, 0.0)

    def _on_fence(self, engine: str) -> None:
        self.fences.remove(engine)
        self.engines.remove(engine)
        self.machine.fenced(engine)

    def _on_land(self, name: str, block: int, layer: int, content: str) -> None:
        wanted = self.wanted[name]
        if not wanted.open or wanted.block != block:
            taken = block in (other.block for other in self.wanted.values())
            by_now = ", to another request by now" if taken else ""
            self.trouble = f"I3: a write landed in a block that had been given back{by_now}"
        elif wanted.content:
            wanted.content[layer] = content

    def _on_verify(self, name: str) -> None:
        transfer = self.verifying.pop(0)  # there is one thread
        assert transfer.commit is not None
        content = self.wanted[name].content
        wrong = transfer.commit.digests != digests(content)
        waited_for = self.machine.verified(transfer, "wrong" if wrong else "", mismatch=wrong)
        if waited_for and wrong and "flipped" not in content:
            self.trouble = "digest: a mismatch where no byte had flipped"

    def _on_flip(self, name: str) -> None:
        self.may_flip = False
        content = self.wanted[name].content
        content[content.index(right(name))] = "flipped"

    def _on_deliver(self, message: Message) -> None:
        self.machine.receive(PEER, message, 0.0)

    def _on_beat(self) -> None:
        self.machine._next_beat = 0.0
        self.machine.tick(0.0)

    def _on_tick(self) -> None:
        self.machine._next_beat = 1.0
        self.machine.tick(0.0)

    def _on_quarantine(self) -> None:
        retired = self.machine.domains.retired
        retired.update(dict.fromkeys(retired, LONG_AGO))
        self._on_tick()

    def _on_silence(self) -> None:
        self.machine.sessions[PEER].last_heard = LONG_AGO
        self._on_tick()

    def _on_overdue(self, name: str) -> None:
        self.machine.transfers[name].since = LONG_AGO
        self._on_tick()

    def _on_unanswered(self, name: str) -> None:
        self.machine.transfers[name].revoked_at = LONG_AGO
        self._on_tick()

    # --- what the machine says -----------------------------------------------------------------------------------

    def _block_for(self, name: str) -> int:
        return self.scene.block_for(name, {wanted.block for wanted in self.wanted.values()})

    def _make_engines(self) -> None:
        for domain in self.machine.domains.missing():
            self.made += 1
            name = f"{FIRST_DECODE if self.scene.engine_names_return else self.machine.incarnation}:{self.made}"
            self.engines.append(name)
            self.machine.engine_added(domain, name)

    def _hear(self) -> None:
        machine = self.machine
        self.fences = sorted(self.fences + machine.fences)
        self.verifying += machine.to_verify
        for resolved in machine.resolved:
            outcome = "loaded" if resolved.ok else "failed" if resolved.reserved else "lost"
            self._resolve(resolved.request_id.removesuffix(AT), outcome)
        for request_id in machine.closed:
            wanted = self.wanted[request_id.removesuffix(AT)]
            if not wanted.open:
                self.trouble = self.trouble or "the blocks were given back twice, or were never reserved"
            wanted.open, wanted.block, wanted.content = False, 0, []
        for output in (
            machine.fences,
            machine.to_verify,
            machine.resolved,
            machine.closed,
            machine.started,
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
        elif wanted.content != [right(name)] * self.scene.layers:
            self.trouble = "I2: the request resumed on a source block that P no longer held, or on another prompt"

    # --- what makes no difference ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Take out what nobody will look at again, so that more states are the same."""
        machine = self.machine
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
        for transfer in machine.transfers.values():
            if transfer.phase >= Phase.RESERVED:
                transfer.started = False  # only asked of what is not reserved
        machine.domains._assigned.clear()  # there is one domain
        for declined in machine._declined.values():
            declined.sort()
        for table in (machine.transfers, machine._ids):
            in_order(table)
        in_order(machine.domains.retired)

    # --- for local.py --------------------------------------------------------------------------------------------

    def take_messages(self) -> list[Message]:
        """Return and forget what the machine wants to send."""
        messages = [message for _, message in self.machine.outbox]
        self.machine.outbox.clear()
        return messages

    def sessions(self) -> dict[int, Any]:
        """Sessions by the incarnation of the peer."""
        return {session.peer: session for session in self.machine.sessions.values()}

    def asked(self) -> tuple[str, ...]:
        """Transfers that this process has asked for."""
        return tuple(name for name, wanted in self.wanted.items() if wanted.stage != "new")

    def key(self) -> tuple[Any, ...]:
        """Everything that tells two states apart is in the attributes."""
        return ()
