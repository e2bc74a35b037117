"""Machines that say something once, and leave it to a time-out where it is lost: those that remember what they have said."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from baton.kv_connector.handoff.consumer import Consumer
from baton.kv_connector.handoff.incoming import Phase
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.handoff.session import SessionState
from baton.kv_connector.protocol.messages import Beat, Body, Commit, Fail, Started


class IntroducesItselfOnce(Consumer):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.told: set[str] = set()

    def _send_beat(self, peer: str) -> None:
        if self.sessions[peer].state is SessionState.OPEN or peer not in self.told:
            super()._send_beat(peer)
        self.told.add(peer)


class ReservesEveryOtherTime(Consumer):
    """Not when P has shown for the first time that it does not know of it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.missed = False

    def _answered(self, peer: str, body: Beat) -> None:
        reserved = {(t.transfer_id, t.epoch) for t in self._of(peer) if t.phase is Phase.RESERVED}
        if self.missed:
            super()._answered(peer, body)
        self.missed = not self.missed and not reserved <= set(body.open)


class BeatsSlowly(Consumer):
    def __init__(self, **arguments: Any) -> None:
        settings = arguments.pop("settings")
        super().__init__(settings=replace(settings, beat_interval_s=10 * settings.beat_interval_s), **arguments)


class _Once(Producer):
    """What has been said of a transfer is not said again, as far as it is named."""

    is_named: Callable[[Body], bool]

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.told: set[tuple[str, int]] = set()

    def _send(self, decode: int, body: Body) -> None:
        if isinstance(body, Started | Commit | Fail) and type(self).is_named(body) and decode in self.sessions:
            what = (body.transfer_id, 0 if isinstance(body, Started) else body.epoch)
            if what in self.told:
                return
            self.told.add(what)
        super()._send(decode, body)


class StartsOnce(_Once):
    is_named = staticmethod(lambda body: isinstance(body, Started))


class CommitsOnce(_Once):
    is_named = staticmethod(lambda body: isinstance(body, Commit))


class FailsOnce(_Once):
    is_named = staticmethod(lambda body: isinstance(body, Fail) and not body.dirty)


class FailsDirtyOnce(_Once):
    is_named = staticmethod(lambda body: isinstance(body, Fail) and body.dirty)
