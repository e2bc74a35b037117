"""Machines that do not say again what was lost, and leave it to a time-out. Each class says what it keeps to itself."""

from dataclasses import replace
from typing import Any

from baton.kv_connector.handoff.consumer import Consumer
from baton.kv_connector.handoff.incoming import ConsumerTransfer, Phase
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.handoff.session import Session, SessionState
from baton.kv_connector.protocol.messages import (
    Beat,
    Body,
    Commit,
    Fail,
    Hello,
    Introduce,
    Message,
    Revoke,
    Started,
)


class IntroducesItselfOnce(Consumer):
    """HELLO."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.told: set[str] = set()

    def _send_beat(self, peer: str) -> None:
        if self.sessions[peer].state is SessionState.OPEN or peer not in self.told:
            super()._send_beat(peer)
        self.told.add(peer)


class RevokesOnce(Consumer):
    """REVOKE of what was reserved."""

    def _send_beat(self, peer: str) -> None:
        before = len(self.outbox)
        super()._send_beat(peer)
        self.outbox[before:] = [sent for sent in self.outbox[before:] if not _is_revoke(sent[1].body)]


class DeclinesOnce(Consumer):
    """REVOKE of what was not reserved: it is said when nothing is needed any more, or when the session opens."""

    def _decline(self, transfer: ConsumerTransfer) -> None:
        super()._decline(transfer)
        if self.sessions[transfer.peer].state is SessionState.OPEN:
            self._declined.pop(transfer.peer, None)

    def _greeted(self, peer: str, session: Session, hello: Hello) -> None:
        super()._greeted(peer, session, hello)
        self._declined.pop(peer, None)


class ReservesOnce(Consumer):
    """RESERVE."""

    def _answered(self, peer: str, body: Beat) -> None:
        pass


class ReservesEveryOtherTime(Consumer):
    """RESERVE, when P has shown for the first time that it does not know of it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.missed = False

    def _answered(self, peer: str, body: Beat) -> None:
        reserved = {(t.transfer_id, t.epoch) for t in self._of(peer) if t.phase is Phase.RESERVED}
        if self.missed:
            super()._answered(peer, body)
        self.missed = not self.missed and not reserved <= set(body.open)


class BeatsSlowly(Consumer):
    """BEAT."""

    def __init__(self, **arguments: Any) -> None:
        settings = arguments.pop("settings")
        super().__init__(settings=replace(settings, beat_interval_s=10 * settings.beat_interval_s), **arguments)


class _Once(Producer):
    """What has been said of a transfer is not said again, as far as it is named."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.told: set[tuple[str, int]] = set()

    def is_named(self, body: Body) -> bool:
        """Whether a message is said only once."""
        raise NotImplementedError

    def _send(self, decode: int, body: Body) -> None:
        if isinstance(body, Started | Commit | Fail) and self.is_named(body) and decode in self.sessions:
            what = (body.transfer_id, 0 if isinstance(body, Started) else body.epoch)
            if what in self.told:
                return
            self.told.add(what)
        super()._send(decode, body)


class StartsOnce(_Once):
    """STARTED."""

    def is_named(self, body: Body) -> bool:
        return isinstance(body, Started)


class CommitsOnce(_Once):
    """COMMIT."""

    def is_named(self, body: Body) -> bool:
        return isinstance(body, Commit)


class FailsOnce(_Once):
    """FAIL(clean)."""

    def is_named(self, body: Body) -> bool:
        return isinstance(body, Fail) and not body.dirty


class FailsDirtyOnce(_Once):
    """FAIL(dirty)."""

    def is_named(self, body: Body) -> bool:
        return isinstance(body, Fail) and body.dirty


class AnswersNoBeat(Producer):
    """BEAT: which epochs P knows of."""

    def _send(self, decode: int, body: Body) -> None:
        if not isinstance(body, Beat):
            super()._send(decode, body)


class AsksNobodyIn(Producer):
    """INTRODUCE."""

    def receive(self, route: object, message: Message, now: float) -> None:
        """Ignore those that it does not know."""
        super().receive(route, message, now)
        self.outbox[:] = [sent for sent in self.outbox if not isinstance(sent[1].body, Introduce)]


def _is_revoke(body: Body) -> bool:
    return isinstance(body, Revoke) and body.epoch > 0
