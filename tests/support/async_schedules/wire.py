"""Control messages between the workers of two nodes, delivered one by one when the schedule says so."""

import random
from collections import defaultdict, deque
from typing import NamedTuple

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.loop import ControlHandler, PeerKey
from baton.kv_connector.telemetry.refusals import Refusals


def address_of(rank: int) -> str:
    """Return where decode ranks reach a prefill rank."""
    return f"tcp://127.0.0.1:{rank + 1}"


ADDRESS = address_of(0)


class _Way(NamedTuple):
    sender: PeerKey  # as the other end knows it
    target: PeerKey


class Wire:
    """A queue from each rank to each of the other node's; every one keeps its order and loses nothing."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._under_way: defaultdict[_Way, deque[bytes]] = defaultdict(deque)
        self._ends: dict[PeerKey, ControlHandler] = {}

    def loop(
        self,
        handler: ControlHandler,
        tick_s: float,
        *,
        secret: ClusterSecret | None = None,
        refusals: Refusals | None = None,
    ) -> "WireEnd":
        """Stand in for the constructor of `ControlLoop`, rank by rank: only who dials names a secret."""
        dials = secret is not None
        rank = sum((kind == "accept") == dials for kind, _ in self._ends)
        key: PeerKey = ("accept", f"decode {rank}".encode()) if dials else ("dial", address_of(rank))
        self._ends[key] = handler
        return WireEnd(self, key)

    def post(self, sender: PeerKey, target: PeerKey, payload: bytes) -> None:
        self._under_way[_Way(sender, target)].append(payload)

    def deliver(self, *, to_prefill: bool) -> bool:
        """Deliver the oldest message of some rank to some other in one direction, if there is one."""
        ways = [way for way, queue in self._under_way.items() if queue and (way.target[0] == "dial") == to_prefill]
        if not ways:
            return False
        way = ways[0] if len(ways) == 1 else self._chance.choice(ways)
        self._ends[way.target].on_payload(way.sender, self._under_way[way].popleft())
        return True


class WireEnd:
    """What a worker sees of it: a `ControlLoop` without threads and ticks."""

    def __init__(self, wire: Wire, key: PeerKey) -> None:
        self._wire = wire
        self._key = key

    def listen(self, host: str, port: int, secret: ClusterSecret) -> str:
        return str(self._key[1])

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def send(self, peer: PeerKey, payload: bytes) -> None:
        self._wire.post(self._key, peer, payload)

    def forget(self, peer: PeerKey) -> None:
        pass

    def wake(self) -> None:
        pass
