"""Control messages between the two workers, delivered one by one when the schedule says so."""

from collections import deque
from typing import NamedTuple

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.loop import ControlHandler, PeerKey
from baton.kv_connector.telemetry.refusals import Refusals

ADDRESS = "tcp://127.0.0.1:1"


class _Letter(NamedTuple):
    to: ControlHandler
    sender: PeerKey
    payload: bytes


class Wire:
    """Two queues; each keeps its order and loses nothing."""

    def __init__(self) -> None:
        self._under_way: dict[bool, deque[_Letter]] = {True: deque(), False: deque()}
        self._ends: dict[bool, ControlHandler] = {}  # by "is the prefill worker's"

    def loop(
        self,
        handler: ControlHandler,
        tick_s: float,
        *,
        secret: ClusterSecret | None = None,
        refusals: Refusals | None = None,
    ) -> "WireEnd":
        """Stand in for the constructor of `ControlLoop`: only who dials names a secret."""
        prefill = secret is None
        self._ends[prefill] = handler
        return WireEnd(self, prefill=prefill)

    def post(self, payload: bytes, *, to_prefill: bool) -> None:
        sender: PeerKey = ("accept", b"decode") if to_prefill else ("dial", ADDRESS)
        self._under_way[to_prefill].append(_Letter(self._ends[to_prefill], sender, payload))

    def deliver(self, *, to_prefill: bool) -> bool:
        """Deliver the oldest message of one direction, if there is one."""
        if not self._under_way[to_prefill]:
            return False
        letter = self._under_way[to_prefill].popleft()
        letter.to.on_payload(letter.sender, letter.payload)
        return True


class WireEnd:
    """What a worker sees of it: a `ControlLoop` without threads and ticks."""

    def __init__(self, wire: Wire, *, prefill: bool) -> None:
        self._wire = wire
        self._prefill = prefill

    def listen(self, host: str, port: int, secret: ClusterSecret) -> str:
        return ADDRESS

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def send(self, peer: PeerKey, payload: bytes) -> None:
        self._wire.post(payload, to_prefill=not self._prefill)

    def forget(self, peer: PeerKey) -> None:
        pass

    def wake(self) -> None:
        pass
