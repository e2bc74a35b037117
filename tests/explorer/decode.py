"""One decode process: the real `Consumer`, and around it a scheduler with one request, engines and one block.

The block is handed to another request the moment the machine closes the epoch; the other request (or the one that
resumed) writes there, so a write that lands from then on destroys something (I3).
"""

from typing import Any

from kv_connector.handoff.consumer import Consumer, Incoming, Wish
from kv_connector.handoff.settings import HandoffSettings
from kv_connector.protocol import Message
from tests.explorer.scope import (
    FIRST_DECODE,
    HELLO,
    LONG_AGO,
    PEER,
    PROMPT_HASH,
    REQUEST_D,
    TRANSFER,
    Event,
    Numbers,
    Scope,
    Submitted,
    accept_all,
    digests,
)


class DecodeSide:
    """State and events of one process. Content of the block, per layer: empty, unwritten, right, garbage."""

    def __init__(self, scope: Scope, machine: type[Consumer], incarnation: int) -> None:
        self.machine = machine(
            incarnation=incarnation, domains=1, settings=HandoffSettings(), hello=HELLO, judge=accept_all
        )
        self.machine._sequence = Numbers()  # type: ignore[assignment]  # `count` cannot be copied everywhere
        self.layers = scope.layers
        self.idle = not scope.asks_again and incarnation != FIRST_DECODE
        self.names_return = scope.engine_names_return
        self.engines: list[str] = []  # alive
        self.made = 0
        self.fences: list[str] = []
        self.watched = self.prepared = self.zeroed = self.cancelled = False
        self.open = False  # between allocation and close: the peer may write here
        self.content: list[str] = []
        self.verifying: list[Incoming] = []
        self.may_flip = scope.verify
        self.outcomes: list[str] = []  # what the scheduler has been told
        self.trouble = ""
        self._make_engines()

    # --- events --------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """What may happen here next, deliveries and landing writes apart."""
        found: list[Event] = []
        if not self.watched and not self.idle:
            found.append(("watch",))
        elif self.watched and not self.cancelled:
            found.append(("cancel",))
            if not self.prepared:
                found.append(("prepare",))
        if self.prepared and not self.zeroed:
            found.append(("zeroed",))
        if self.verifying:
            found.append(("verify",))
        if self.may_flip and "right" in self.content:
            found.append(("flip",))
        found += [("fence", engine) for engine in self.fences]
        machine = self.machine
        if machine.sessions:
            found += [("beat",), ("silence",)]
        if machine.transfers:
            found += [("overdue",), ("unanswered",)]
        if set(machine.domains.retired) - set(machine.domains.fencing):
            found.append(("tick",))
        return found

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
        """Whether the scheduler has its answer and nothing is kept for anybody any more."""
        answered = not self.watched or bool(self.outcomes)
        return (
            answered
            and not self.open
            and not self.verifying
            and not self.machine.transfers
            and not self.machine.domains.retired
        )

    def _on_watch(self) -> None:
        self.watched = True
        self.machine.watch(TRANSFER, REQUEST_D, PEER, 0.0)
        self.machine.announce()

    def _on_prepare(self) -> None:
        self.prepared = self.open = True
        self.content = ["empty"] * self.layers
        self.machine.prepare(REQUEST_D, 1, Wish(16, 0, [[1]], PROMPT_HASH), 0.0)

    def _on_zeroed(self) -> None:
        self.zeroed = True
        if self.open:
            self.content = ["empty"] * self.layers
        self.machine.zeroed([REQUEST_D], 0.0)

    def _on_cancel(self) -> None:
        self.cancelled = True
        self.machine.cancel(REQUEST_D, 0.0)

    def _on_fence(self, engine: str) -> None:
        self.fences.remove(engine)
        self.engines.remove(engine)
        self.machine.fenced(engine)

    def _on_land(self, layer: int, content: str) -> None:
        if self.open:
            self.content[layer] = content
        else:
            self.trouble = "I3: a write landed in a block that had been given back"

    def _on_verify(self) -> None:
        transfer = self.verifying.pop(0)
        assert transfer.commit is not None
        wrong = transfer.commit.digests != digests(self.content)
        self.machine.verified(transfer, "wrong" if wrong else "", mismatch=wrong)

    def _on_flip(self) -> None:
        self.may_flip = False
        self.content[self.content.index("right")] = "flipped"

    def _on_deliver(self, message: Message) -> None:
        self.machine.receive(PEER, message, 0.0)

    def _on_beat(self) -> None:
        self.machine._next_beat = 0.0
        self.machine.tick(0.0)

    def _on_tick(self) -> None:
        self.machine._next_beat = 1.0
        self.machine.tick(0.0)

    def _on_silence(self) -> None:
        self.machine.sessions[PEER].last_heard = LONG_AGO
        self._on_tick()

    def _on_overdue(self) -> None:
        for transfer in self.machine.transfers.values():
            transfer.since = LONG_AGO
        self._on_tick()

    def _on_unanswered(self) -> None:
        for transfer in self.machine.transfers.values():
            transfer.revoked_at = LONG_AGO
        self._on_tick()

    # --- what the machine says -----------------------------------------------------------------------------------

    def _make_engines(self) -> None:
        for domain in self.machine.domains.missing():
            self.made += 1
            name = f"{FIRST_DECODE if self.names_return else self.machine.incarnation}:{self.made}"
            self.engines.append(name)
            self.machine.engine_added(domain, name)

    def _hear(self) -> None:
        machine = self.machine
        self.fences += machine.fences
        self.verifying += machine.to_verify
        machine.to_verify.clear()
        for resolved in machine.resolved:
            self._resolve(resolved.ok, "loaded" if resolved.ok else "failed" if resolved.reserved else "lost")
        for request_id in machine.closed:
            if request_id != REQUEST_D or not self.open:
                self.trouble = self.trouble or "the blocks were given back twice, or were never reserved"
            self.open, self.content = False, []
        for output in (machine.fences, machine.resolved, machine.closed, machine.started, machine.forgotten):
            output.clear()

    def _resolve(self, ok: bool, outcome: str) -> None:
        # A loss may cross an allocation on the way: then the allocation is answered as well.
        if outcome in self.outcomes or (self.outcomes and self.outcomes != ["lost"]):
            self.trouble = f"the request was resolved twice: {self.outcomes}, {outcome}"
        self.outcomes.append(outcome)
        if ok and "unwritten" in self.content:
            self.trouble = "I1: the request resumed on a block that was pushed before it had been written"
        elif ok and "empty" in self.content:
            self.trouble = "I4: the request resumed before every layer had arrived"
        elif ok and "garbage" in self.content:
            self.trouble = "I2: the request resumed on a source block that P no longer held, or on another prompt"
        elif ok and "flipped" in self.content:
            self.trouble = "digest: the request resumed on a flipped byte"

    def _forget(self) -> None:
        """Once the scheduler has its answer, a cancel makes no difference, nor does a block that was given back."""
        self.cancelled = self.cancelled or (self.prepared and bool(self.outcomes))
        self.zeroed = self.zeroed or (self.prepared and not self.open)

    # --- for local.py --------------------------------------------------------------------------------------------

    def take_messages(self) -> list[Message]:
        """Return and forget what the machine wants to send."""
        messages = [message for _, message in self.machine.outbox]
        self.machine.outbox.clear()
        return messages

    def sessions(self) -> dict[int, Any]:
        """Sessions by the incarnation of the peer."""
        return {session.peer: session for session in self.machine.sessions.values()}

    def key(self) -> tuple[Any, ...]:
        """Everything that tells two states apart is in the attributes."""
        return ()
