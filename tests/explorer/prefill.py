"""One prefill rank's process: the real `Producer` and `FanOut`, and around them a scheduler, a sender and source blocks.

A block is another request's the moment P does not hold it any more: what is read from it from then on is garbage (I2).
The block of a preempted prompt keeps its content until the device writes there: `zero`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from baton.kv_connector.handoff.outgoing import ProducerTransfer, Prompt, Push
from baton.kv_connector.handoff.pushing import TransferLayout
from baton.kv_connector.layout.tp_mapping import transfer_id_of_flow
from baton.kv_connector.protocol.messages import Fail, Hello, Message
from tests.explorer.freeze import in_order
from tests.explorer.rank import Facts, Rank
from tests.explorer.scene import (
    BLOCK_TOKENS,
    HELLO,
    LONG_AGO,
    NUMBERS,
    REASON,
    SETTINGS,
    Event,
    Handle,
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
    verify_all,
    verify_none,
)

AT = " at P"  # a request is named after its transfer


@dataclass(slots=True)
class Source:
    """One transfer's prompt and its block. Content, per layer: unwritten, right, garbage."""

    content: list[str]
    request: str = "none"  # gone, running, zeroed (and not told yet), voided, held, released
    sampled: bool = False  # its first token
    block: int = 0  # while running or held; of a voided one while nothing else has been written there


class ProducerRank(Rank):
    """The machine, its sender and its clock."""

    def __init__(self, scene: Scene, machines: Machines, incarnation: int) -> None:
        self.place = place_of(incarnation)
        self.machine = machines.producer(
            incarnation=incarnation,
            layers=scene.layers,
            block_tokens=BLOCK_TOKENS,
            settings=SETTINGS,
            hello=HELLO,
            check_compatible=accept_all,
            refused=uncounted,
            terms=partial(_terms, scene.terms(self.place)),
            verify=verify_all if scene.verify else verify_none,
        )
        self.machine._sequence = NUMBERS
        self.fan_out = machines.fan_out(self.machine)
        self.scene = scene
        self.pushes: dict[Handle, Push] = {}

    def events(self) -> list[Event]:
        """What the sender and the clock may do."""
        found: list[Event] = [("push", flow) for flow in self.machine._pushable]
        found += [("silence", incarnation) for incarnation in self.machine.sessions]
        found += [("orphan", flow) for flow, t in self.machine.transfers.items() if t.held_since is not None]
        return found

    def _on_push(self, flow: str) -> list[Submitted]:
        """The sender asks for a push; `flow` has been waiting longest."""
        waiting = self.machine._pushable
        first = {flow: waiting.pop(flow)}
        self.machine._pushable = first | waiting
        push = self.machine.next_push(lambda _: 1)
        if push is None:
            return []
        piece, transfer, reservation = push.pieces[0], push.transfer, push.transfer.reservation
        handle = (transfer.transfer_id, piece.layer, piece.start)
        assert reservation is not None, "only what is reserved is pushed"
        assert handle not in self.pushes, "what is being pushed is not handed out again"
        self.pushes[handle] = push
        source = transfer.source_blocks[0][reservation.from_token // BLOCK_TOKENS + piece.start]
        target = reservation.blocks[0][piece.start]
        return [Submitted(handle, transfer_id_of_flow(handle[0]), reservation.engine, source, target, piece.layer)]

    def _on_done(self, handle: Handle, ok: bool) -> None:
        self.machine.push_done(self.pushes.pop(handle), ok, 0.0)

    def _on_deliver(self, message: Message) -> None:
        self.machine.receive(place_of(message.sender), message, 0.0)

    def _on_silence(self, incarnation: int) -> None:
        self.machine.sessions[incarnation].last_heard = LONG_AGO
        self.machine.tick(0.0)

    def _on_orphan(self, flow: str) -> None:
        self.machine.transfers[flow].held_since = LONG_AGO
        self.machine.tick(0.0)

    def forget(self) -> None:
        """Take out what the machine will never look at again, so that more states are the same."""
        machine, fan_out = self.machine, self.fan_out
        for flow, transfer in list(machine._pushable.items()):  # `next_push` would drop these
            if transfer.coverage is None or not transfer.coverage.pending:
                del machine._pushable[flow]
        outcomes, owners = machine.tombstones._outcomes, machine.tombstones._by_owner
        for owner, outcome in list(outcomes.values()):  # any rank that asks, for any epoch: it has failed cleanly
            if isinstance(outcome, Fail) and not outcome.dirty and (owner or outcome.epoch):
                machine.tombstones.bury(0, replace(outcome, epoch=0, reason=REASON))
        quotas = machine._quotas
        if not self.scene.engine_names_return:  # then no decode rank names another's
            quotas.owners.clear()
            quotas._engines.clear()
        by_name: list[dict[Any, Any]] = [machine.transfers, machine._pushable, machine._ids, outcomes, *owners.values()]
        by_name += [fan_out._flows, fan_out._open, fan_out._holding, fan_out._request_of]
        by_peer: list[dict[Any, Any]] = [machine.sessions, machine._routes, machine._hellos, owners]
        for table in [*by_name, *by_peer, machine._terms_of, quotas.transfers, quotas.blocks, quotas.places]:
            in_order(table)

    def pushes_key(self) -> tuple[Any, ...]:
        """Which pushes belong to a transfer that has ended."""
        live = self.machine.transfers
        return tuple((handle, push.transfer is live.get(handle[0])) for handle, push in sorted(self.pushes.items()))


class PrefillSide(ProducerRank):
    """State and events of one process."""

    def __init__(self, scene: Scene, machines: Machines, incarnation: int) -> None:
        super().__init__(scene, machines, incarnation)
        self.sources = {name: Source(["unwritten"] * scene.layers) for name in scene.names}
        self.digesting: list[ProducerTransfer] = []
        self.samples = scene.samples and self.place == scene.prefill[-1]
        self.wrong_prompt = scene.other_prompt and self.place == scene.prefill[-1]
        self.trouble = ""

    # --- events --------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """What may happen here next, deliveries and ends of pushes apart."""
        found: list[Event] = []
        for name, source in self.sources.items():
            found += [(event, name) for event in self._events_of(source)]
            if source.request == "none" and self._block_for(name):
                found.append(("start", name))
            if any(flow not in self.machine.tombstones for flow in self._flows(name)):
                found.append(("cancel", name))
        if self.digesting:
            found.append(("digest", self.digesting[0].transfer_id))
        return found + super().events()

    def _events_of(self, source: Source) -> list[str]:
        match source.request:
            case "none":
                return ["abandon"]
            case "running":
                preempt = "zero" if self.scene.zeroes_first else "void"
                if "unwritten" in source.content:
                    return [preempt, "ready"]
                return [preempt, "hold" if source.sampled or not self.samples else "sample"]
            case "zeroed":
                return ["hear"]
            case "voided":
                return ["hold", "zero"] if source.block else ["hold"]
        return []

    def apply(self, event: Event) -> list[Submitted]:
        """Let one event happen; return the pushes that begin with it."""
        name, *arguments = event
        submitted: list[Submitted] = getattr(self, f"_on_{name}")(*arguments) or []
        self._hear()
        self._forget()
        return submitted

    def at_rest(self) -> bool:
        """Whether nothing is kept for anybody any more."""
        kept = any(source.request in ("running", "zeroed", "held") for source in self.sources.values())
        return not self.machine.transfers and not self.pushes and not self.digesting and not kept

    def _on_start(self, name: str) -> None:
        source = self.sources[name]
        block = self._block_for(name)
        for other in self.sources.values():
            if other.block == block:  # it was preempted: now its block is written to
                other.block, other.content = 0, ["garbage"] * self.scene.layers
        source.request, source.block = "running", block
        prompt = Prompt(BLOCK_TOKENS, 1, b"another" if self.wrong_prompt else prompt_hash(name), samples=self.samples)
        flows = [(flow, self.scene.prefill_ranks) for flow in self._flows(name)]
        self.fan_out.start(name, name + AT, flows, prompt, 0.0)
        self.fan_out.add_source_blocks(name + AT, [source.block])

    def _on_abandon(self, name: str) -> None:
        self.sources[name].request = "gone"
        for flow in self._flows(name):
            self.machine.abandon(flow, "not a prompt for this", 0.0)

    def _on_cancel(self, name: str) -> None:
        self.fan_out.cancel(name, 0.0)

    def _on_ready(self, name: str) -> None:
        content = self.sources[name].content
        layer = content.index("unwritten")
        content[layer] = "garbage" if self.wrong_prompt else right(name)
        self.fan_out.ready(name + AT, layer, 1, 0.0)

    def _on_sample(self, name: str) -> None:
        self.sources[name].sampled = True
        self.fan_out.token_sampled(name + AT, first_token(name), 0.0)

    def _on_void(self, name: str) -> None:
        self.sources[name].request = "voided"
        self.fan_out.void(name + AT, "preempted", 0.0)

    def _on_hear(self, name: str) -> None:
        """P's connector hears of the preemption last."""
        self._on_void(name)

    def _on_zero(self, name: str) -> None:
        source = self.sources[name]
        self._let_go(name, "zeroed" if source.request == "running" else source.request)

    def _on_hold(self, name: str) -> None:
        self.sources[name].request = "held"
        self.fan_out.hold(name + AT, 0.0)

    def _on_digest(self, flow: str) -> None:
        content = digests(self.sources[transfer_id_of_flow(flow)].content)  # of what is there by now
        self.machine.digested(self.digesting.pop(0), content, 0.0)  # there is one thread

    def _let_go(self, name: str, request: str) -> None:
        source = self.sources[name]
        source.request, source.block, source.content = request, 0, ["garbage"] * len(source.content)
        source.sampled = False

    def _flows(self, name: str) -> list[str]:
        return [self.scene.flow(name, self.place, target) for target in self.scene.decode]

    def _block_for(self, name: str) -> int:
        taken = {source.block for source in self.sources.values() if source.request != "voided"}
        return self.scene.block_for(name, taken)

    def _hear(self) -> None:
        for transfer, _ in self.machine.ended:
            self.fan_out.ended(transfer_id_of_flow(transfer.transfer_id), transfer.transfer_id)
        self.fan_out.collect()
        for request_id in self.fan_out.released:
            name = request_id.removesuffix(AT)
            if self.sources[name].request != "held":
                self.trouble = "the source block was released twice, or was never held"
            self._let_go(name, "released")
        self.digesting += self.machine.to_digest
        self.machine.to_digest.clear()
        self.machine.complaints.clear()
        self.machine.ended.clear()
        self.fan_out.released.clear()

    # --- what makes no difference ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        for name in self.sources:
            self._forget_request(name)
        self.forget()

    def _forget_request(self, name: str) -> None:
        source, flows = self.sources[name], self._flows(name)
        live = [transfer for flow in flows if (transfer := self.machine.transfers.get(flow))]
        if not all(transfer.ending for transfer in live) or not all(
            flow in self.machine.transfers or flow in self.machine.tombstones for flow in flows
        ):
            return
        is_read = any(handle[0] in flows for handle in self.pushes) or any(
            t.transfer_id in flows for t in self.digesting
        )
        if live:
            # It will not be committed: its request may as well have finished, and its block have been taken away.
            if source.request in ("running", "zeroed", "voided"):
                self._on_hold(name)
                self._hear()
            source.block, source.content = 0, ["garbage"] * self.scene.layers
        elif not is_read:
            # It has ended: what its request does from now on, and whether there is one, changes nothing.
            if source.request in ("running", "zeroed", "voided"):
                self._on_hold(name)
                self._hear()
            if source.request != "held":  # that would be a leak
                self._let_go(name, "released")

    # --- for local.py --------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        return Facts(
            incarnation=self.incarnation,
            events=tuple(self.events()),
            problem=self.trouble,
            at_rest=self.at_rest(),
            flows=frozenset(self.machine.transfers),
            peers=frozenset(self.machine.sessions),
            source=self.contents(),
            lacks=self.lacks(),
        )

    def contents(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """Content of each source block, per layer."""
        held = {source.block: tuple(source.content) for source in self.sources.values()}
        return tuple((block, held.get(block, ("garbage",) * self.scene.layers)) for block in self.scene.blocks)

    def lacks(self) -> frozenset[str]:
        """Flows whose prompt this process has not been given."""
        return frozenset(flow for name, s in self.sources.items() if s.request == "none" for flow in self._flows(name))

    def key(self) -> tuple[Any, ...]:
        """What else tells two states apart: which pushes and digests belong to a transfer that has ended."""
        live = self.machine.transfers
        return *self.pushes_key(), *((t.transfer_id, t is live.get(t.transfer_id)) for t in self.digesting)


def _terms(terms: TransferLayout, _: Hello) -> TransferLayout:
    return terms
