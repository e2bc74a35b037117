"""One prefill process: the real `Producer`, and around it a scheduler, a sender and the source blocks.

A block is another request's the moment P does not hold it any more: what is read from it from then on is garbage (I2).
"""

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from kv_connector.handoff.outgoing import Outgoing, Prompt, Push
from kv_connector.handoff.producer import Producer, verify_none
from kv_connector.protocol import Fail, Message
from tests.explorer.freeze import in_order
from tests.explorer.scope import (
    HELLO,
    LONG_AGO,
    SETTINGS,
    Event,
    Numbers,
    Scene,
    Submitted,
    accept_all,
    digests,
    prompt_hash,
    right,
    verify_all,
)

AT = " at P"  # a request is named after its transfer


@dataclass(slots=True)
class Source:
    """One transfer's prompt and its block. Content, per layer: unwritten, right, garbage."""

    content: list[str]
    request: str = "none"  # gone, running, voided, held, released
    block: int = 0  # while running or held


class PrefillSide:
    """State and events of one process."""

    def __init__(self, scene: Scene, machine: type[Producer], incarnation: int) -> None:
        self.machine = machine(
            incarnation=incarnation,
            layers=scene.layers,
            block_tokens=16,
            settings=SETTINGS,
            hello=HELLO,
            judge=accept_all,
            verify=verify_all if scene.verify else verify_none,
        )
        self.machine._sequence = Numbers()  # type: ignore[assignment]  # `count` cannot be copied everywhere
        self.scene = scene
        self.sources = {name: Source(["unwritten"] * scene.layers) for name in scene.names}
        self.pushes: dict[tuple[str, int], Push] = {}
        self.digesting: list[Outgoing] = []
        self.wrong_prompt = scene.other_prompt
        self.trouble = ""

    # --- events --------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """What may happen here next, deliveries and ends of pushes apart."""
        found: list[Event] = []
        for name, source in self.sources.items():
            if source.request == "none":
                found.append(("abandon", name))
                if self._block_for(name):
                    found.append(("start", name))
            if source.request == "running":
                found.append(("void", name))
                found.append(("ready" if "unwritten" in source.content else "hold", name))
            if source.request == "voided":
                found.append(("hold", name))
            if name not in self.machine.tombstones:
                found.append(("cancel", name))
        found += [("push", name) for name in self.machine._pushable]
        if self.digesting:
            found.append(("digest", self.digesting[0].transfer_id))
        found += [("silence", incarnation) for incarnation in self.machine.sessions]
        found += [("orphan", name) for name, t in self.machine.transfers.items() if t.held_since is not None]
        return found

    def apply(self, event: Event) -> list[Submitted]:
        """Let one event happen; return the pushes that begin with it."""
        name, *arguments = event
        submitted: list[Submitted] = getattr(self, f"_on_{name}")(*arguments) or []
        self._release()
        self._forget()
        return submitted

    def problem(self) -> str:
        """What is wrong in this state, or ""."""
        return self.trouble

    def at_rest(self) -> bool:
        """Whether nothing is kept for anybody any more."""
        kept = any(source.request in ("running", "held") for source in self.sources.values())
        return not self.machine.transfers and not self.pushes and not self.digesting and not kept

    def _on_start(self, name: str) -> None:
        source = self.sources[name]
        source.request, source.block = "running", self._block_for(name)
        prompt = Prompt(16, 1, b"another" if self.wrong_prompt else prompt_hash(name))
        self.machine.start(name, name + AT, prompt, 0.0)
        self.machine.add_source_blocks(name + AT, [source.block])

    def _on_abandon(self, name: str) -> None:
        self.sources[name].request = "gone"
        self.machine.abandon(name, "not a prompt for this", 0.0)

    def _on_cancel(self, name: str) -> None:
        self.machine.cancel(name, 0.0)

    def _on_ready(self, name: str) -> None:
        content = self.sources[name].content
        layer = content.index("unwritten")
        content[layer] = "garbage" if self.wrong_prompt else right(name)
        self.machine.ready(name + AT, layer, 1, 0.0)

    def _on_void(self, name: str) -> None:
        self._let_go(name, "voided")
        self.machine.void(name + AT, "preempted", 0.0)

    def _on_hold(self, name: str) -> None:
        self.sources[name].request = "held"
        self.machine.hold(name + AT, 0.0)

    def _on_push(self, name: str) -> list[Submitted]:
        """The sender asks for a push; `name` has been waiting longest."""
        waiting = self.machine._pushable
        first = {name: waiting.pop(name)}
        self.machine._pushable = first | waiting
        push = self.machine.next_push(1)
        if push is None:
            return []
        piece, reservation = push.pieces[0], push.transfer.reservation
        handle = (push.transfer.transfer_id, piece.layer)
        assert reservation is not None, "only what is reserved is pushed"
        assert handle not in self.pushes, "what is being pushed is not handed out again"
        self.pushes[handle] = push
        source, target = push.transfer.source_blocks[0][piece.start], reservation.blocks[0][piece.start]
        return [Submitted(handle, handle[0], reservation.engine, source, target, piece.layer)]

    def _on_done(self, handle: tuple[str, int], ok: bool) -> None:
        self.machine.push_done(self.pushes.pop(handle), ok, 0.0)

    def _on_digest(self, name: str) -> None:
        content = digests(self.sources[name].content)  # of what is there by now
        self.machine.digested(self.digesting.pop(0), content, 0.0)  # there is one thread

    def _on_deliver(self, message: Message) -> None:
        self.machine.receive("to the decode node", message, 0.0)

    def _on_silence(self, incarnation: int) -> None:
        self.machine.sessions[incarnation].last_heard = LONG_AGO
        self.machine.tick(0.0)

    def _on_orphan(self, name: str) -> None:
        self.machine.transfers[name].held_since = LONG_AGO
        self.machine.tick(0.0)

    def _let_go(self, name: str, request: str) -> None:
        source = self.sources[name]
        source.request, source.block, source.content = request, 0, ["garbage"] * len(source.content)

    def _block_for(self, name: str) -> int:
        return self.scene.block_for(name, {source.block for source in self.sources.values()})

    def _release(self) -> None:
        for request_id in self.machine.released:
            name = request_id.removesuffix(AT)
            if self.sources[name].request != "held":
                self.trouble = "the source block was released twice, or was never held"
            self._let_go(name, "released")
        self.digesting += self.machine.to_digest
        self.machine.to_digest.clear()
        self.machine.complaints.clear()
        self.machine.released.clear()
        self.machine.ended.clear()

    # --- what makes no difference ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Take out what the machine will never look at again, so that more states are the same."""
        machine = self.machine
        for name in self.sources:
            self._forget_request(name)
        for name, transfer in list(machine._pushable.items()):  # `next_push` would drop these
            if transfer.coverage is None or not transfer.coverage.pending:
                del machine._pushable[name]
        outcomes, owners = machine.tombstones._outcomes, machine.tombstones._by_owner
        for owner, outcome in list(outcomes.values()):  # whoever asks, for whichever epoch: it has failed cleanly
            if isinstance(outcome, Fail) and not outcome.dirty and (owner or outcome.epoch):
                machine.tombstones.bury(0, replace(outcome, epoch=0, reason=""))
        claims = machine._claims
        if not self.scene.engine_names_return:  # then nobody names another's
            claims.owners.clear()
            claims._engines.clear()
        by_name: list[dict[Any, Any]] = [machine.transfers, machine._pushable, machine._ids, outcomes, *owners.values()]
        by_peer: list[dict[Any, Any]] = [machine.sessions, machine._routes, machine._hellos, owners]
        for table in [*by_name, *by_peer, claims.transfers, claims.blocks, claims.places]:
            in_order(table)

    def _forget_request(self, name: str) -> None:
        source, transfer = self.sources[name], self.machine.transfers.get(name)
        is_read = name in (handle[0] for handle in self.pushes) or name in (t.transfer_id for t in self.digesting)
        if transfer is not None and transfer.ending:
            # It will not be committed: its request may as well have finished, and its block have been taken away.
            if source.request in ("running", "voided"):
                self._on_hold(name)
            source.block, source.content = 0, ["garbage"] * self.scene.layers
        elif transfer is None and name in self.machine.tombstones and not is_read:
            # It has ended: what its request does from now on, and whether there is one, is of interest to nobody.
            if source.request in ("running", "voided"):
                self._on_hold(name)
                self._release()
            if source.request != "held":  # that would be a leak
                self._let_go(name, "released")

    # --- for local.py --------------------------------------------------------------------------------------------

    def take_messages(self) -> list[Message]:
        """Return and forget what the machine wants to send."""
        messages = [message for _, message in self.machine.outbox]
        self.machine.outbox.clear()
        return messages

    def sessions(self) -> dict[int, Any]:
        """Sessions by the incarnation of the peer."""
        return dict(self.machine.sessions)

    def contents(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """Content of each source block, per layer."""
        held = {source.block: tuple(source.content) for source in self.sources.values()}
        return tuple((block, held.get(block, ("garbage",) * self.scene.layers)) for block in self.scene.blocks)

    def key(self) -> tuple[Any, ...]:
        """What else tells two states apart: which pushes belong to a transfer that has ended."""
        """What else tells two states apart: which pushes and digests belong to a transfer that has ended."""
        live = self.machine.transfers
        pushes = ((handle, push.transfer is live.get(handle[0])) for handle, push in sorted(self.pushes.items()))
        return *pushes, *((t.transfer_id, t is live.get(t.transfer_id)) for t in self.digesting)
