"""One prefill process: the real `Producer`, and around it a scheduler with one prompt, a sender and one source block."""

from typing import Any

from kv_connector.handoff.producer import Outgoing, Producer, Prompt, Push, verify_none
from kv_connector.handoff.settings import HandoffSettings
from kv_connector.protocol import Message
from tests.explorer.scope import (
    HELLO,
    LONG_AGO,
    PROMPT_HASH,
    REQUEST_P,
    TRANSFER,
    Event,
    Numbers,
    Scope,
    Submitted,
    accept_all,
    digests,
    verify_all,
)

NO_HANDLE = -1


class PrefillSide:
    """State and events of one process. Content of the source block, per layer: unwritten, right, garbage."""

    def __init__(self, scope: Scope, machine: type[Producer], incarnation: int) -> None:
        self.machine = machine(
            incarnation=incarnation,
            layers=scope.layers,
            block_tokens=16,
            settings=HandoffSettings(),
            hello=HELLO,
            judge=accept_all,
            verify=verify_all if scope.verify else verify_none,
        )
        self.machine._sequence = Numbers()  # type: ignore[assignment]  # `count` cannot be copied everywhere
        self.prompt = Prompt(16, 1, b"another" if scope.other_prompt else PROMPT_HASH)
        self.request = "none"  # gone, running, voided, held, released
        self.source = ["unwritten"] * scope.layers
        self.pushes: dict[int, Push] = {}
        self.digesting: list[Outgoing] = []
        self.wrong_prompt = scope.other_prompt
        self.trouble = ""

    # --- events --------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """What may happen here next, deliveries and ends of pushes apart."""
        found: list[Event] = []
        if self.request == "none":
            found += [("start",), ("abandon",)]
        if self.request == "running":
            found.append(("void",))
            found.append(("ready",) if "unwritten" in self.source else ("hold",))
        if self.request == "voided":
            found.append(("hold",))
        if TRANSFER not in self.machine.tombstones:
            found.append(("cancel",))
        if self.machine._pushable:
            found.append(("push",))
        if self.digesting:
            found.append(("digest",))
        found += [("silence", incarnation) for incarnation in self.machine.sessions]
        if any(transfer.held_since is not None for transfer in self.machine.transfers.values()):
            found.append(("orphan",))
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
        return (
            not self.machine.transfers
            and not self.pushes
            and not self.digesting
            and self.request not in ("running", "held")
        )

    def _on_start(self) -> None:
        self.request = "running"
        self.machine.start(TRANSFER, REQUEST_P, self.prompt, 0.0)
        self.machine.add_source_blocks(REQUEST_P, [7])

    def _on_abandon(self) -> None:
        self.request = "gone"
        self.machine.abandon(TRANSFER, "not a prompt for this", 0.0)

    def _on_cancel(self) -> None:
        self.machine.cancel(TRANSFER, 0.0)

    def _on_ready(self) -> None:
        layer = self.source.index("unwritten")
        self.source[layer] = "garbage" if self.wrong_prompt else "right"
        self.machine.ready(REQUEST_P, layer, 1, 0.0)

    def _on_void(self) -> None:
        self.request, self.source = "voided", ["garbage"] * len(self.source)  # the block is reused at once
        self.machine.void(REQUEST_P, "preempted", 0.0)

    def _on_hold(self) -> None:
        self.request = "held"
        self.machine.hold(REQUEST_P, 0.0)

    def _on_push(self) -> list[Submitted]:
        push = self.machine.next_push(1)
        if push is None:
            return []
        handle = min(set(range(len(self.pushes) + 1)) - set(self.pushes))
        self.pushes[handle] = push
        assert push.transfer.reservation is not None
        return [Submitted(handle, push.transfer.reservation.engine, push.pieces[0].layer)]

    def _on_done(self, handle: int, ok: bool) -> None:
        self.machine.push_done(self.pushes.pop(handle), ok, 0.0)

    def _on_digest(self) -> None:
        self.machine.digested(self.digesting.pop(0), digests(self.source), 0.0)  # of what is there by now

    def _on_deliver(self, message: Message) -> None:
        self.machine.receive("to the decode node", message, 0.0)

    def _on_silence(self, incarnation: int) -> None:
        self.machine.sessions[incarnation].last_heard = LONG_AGO
        self.machine.tick(0.0)

    def _on_orphan(self) -> None:
        for transfer in self.machine.transfers.values():
            if transfer.held_since is not None:
                transfer.held_since = LONG_AGO
        self.machine.tick(0.0)

    def _release(self) -> None:
        for request_id in self.machine.released:
            if request_id != REQUEST_P or self.request != "held":
                self.trouble = "the source block was released twice, or was never held"
            self.request, self.source = "released", ["garbage"] * len(self.source)
        self.digesting += self.machine.to_digest
        self.machine.to_digest.clear()
        self.machine.complaints.clear()
        self.machine.released.clear()
        self.machine.ended.clear()

    def _forget(self) -> None:
        """Once nothing is left of the transfer, what its request does next makes no difference but for its end."""
        if (
            self.request == "running"
            and not self.pushes
            and not self.digesting
            and TRANSFER not in self.machine._ids.values()
        ):
            self.request, self.source = "voided", ["garbage"] * len(self.source)

    # --- for local.py --------------------------------------------------------------------------------------------

    def take_messages(self) -> list[Message]:
        """Return and forget what the machine wants to send."""
        messages = [message for _, message in self.machine.outbox]
        self.machine.outbox.clear()
        return messages

    def sessions(self) -> dict[int, Any]:
        """Sessions by the incarnation of the peer."""
        return dict(self.machine.sessions)

    def key(self) -> tuple[Any, ...]:
        """What else tells two states apart: which pushes belong to a transfer that has ended."""
        live = self.machine.transfers.get(TRANSFER)
        pushes = ((handle, push.transfer is live) for handle, push in self.pushes.items())
        return *pushes, *((NO_HANDLE, transfer is live) for transfer in self.digesting)
