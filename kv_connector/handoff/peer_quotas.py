"""What the decode ranks may have at once on P, so that none of them can make P's memory grow, or take another's.

The bounds are far beyond what a healthy rank needs. One that asks for more is told so and computes the prompt itself.
An engine belongs to the first rank that names it, for as long as P knows that rank: no other can make P write into
another's memory.
"""

from collections import Counter

from baton.kv_connector.protocol.messages import MAX_OPEN, Hello, Reserve
from baton.kv_connector.telemetry.refusals import Refused

MAX_PEERS = 1_024  # decode ranks, those that restarted within the last `peer_timeout_s` included
MAX_TRANSFERS_EACH = MAX_OPEN  # a beat lists no more
MAX_UNSTARTED = 8 * MAX_OPEN  # transfers that decode ranks asked for and whose prompt has not started here
MAX_BLOCKS_EACH = 1 << 20  # block ids in a rank's open reservations: pools are smaller
# Places in the lists that hold them, those of blocks that are not wanted included: of a long prompt a layer with a
# window wants a few, and every KV cache group has a list. 64 MiB.
MAX_PLACES_EACH = 8 * MAX_BLOCKS_EACH
MAX_ENGINES_EACH = 64  # names that a rank has given to its engines, one after the other
BEAT_BUDGET = 1_024  # transfers that one beat may begin, end or have answered: other peers wait until it is over


class PeerQuotas:
    """How much of its quotas each decode rank has in use."""

    def __init__(self) -> None:
        self.transfers: Counter[int] = Counter()  # by decode rank
        self.blocks: Counter[int] = Counter()  # that their reservations want
        self.places: Counter[int] = Counter()  # in their reservations
        self.owners: dict[str, int] = {}  # engine → decode rank
        self._engines: dict[int, list[str]] = {}  # decode rank → its engines, oldest first

    def may_join(self, peers: int) -> bool:
        return peers < MAX_PEERS

    def objection(self, decode: int, owner: int | None, unstarted: int) -> Refused | None:
        """Why a rank may not have a transfer: the first one that asks has it, and none has too many.

        `owner`: the rank that has it; 0: none yet; None: P has not heard of the transfer. `unstarted`: transfers whose
        prompt has not started.
        """
        if owner:
            return None if owner == decode else Refused.NOT_THEIRS
        crowded = owner is None and unstarted >= MAX_UNSTARTED
        return Refused.TOO_MUCH if crowded or self.transfers[decode] >= MAX_TRANSFERS_EACH else None

    def objection_to(self, decode: int, wish: Reserve, hello: Hello) -> Refused | None:
        """Why nothing may be written where a rank, introduced by `hello`, says."""
        pool = min((region.num_blocks for region in hello.regions), default=MAX_BLOCKS_EACH)
        if any(max(group, default=-1) >= pool for group in wish.blocks):
            return Refused.BLOCKS
        if self.owners.get(wish.engine, decode) != decode:
            return Refused.ENGINE
        crowded = self.blocks[decode] + _num_blocks(wish) > MAX_BLOCKS_EACH
        return Refused.TOO_MUCH if crowded or self.places[decode] + _num_places(wish) > MAX_PLACES_EACH else None

    def own(self, decode: int) -> None:
        self.transfers[decode] += 1

    def reserve(self, decode: int, wish: Reserve) -> None:
        """One of its transfers is reserved; the caller has asked whether it may be."""
        self.blocks[decode] += _num_blocks(wish)
        self.places[decode] += _num_places(wish)
        if wish.engine not in self.owners:
            mine = self._engines.setdefault(decode, [])
            if len(mine) == MAX_ENGINES_EACH:
                del self.owners[mine.pop(0)]
            mine.append(wish.engine)
            self.owners[wish.engine] = decode

    def give(self, decode: int, wish: Reserve | None) -> None:
        blocks, places = (_num_blocks(wish), _num_places(wish)) if wish else (0, 0)
        for counter, number in ((self.transfers, 1), (self.blocks, blocks), (self.places, places)):
            counter[decode] -= number
            if not counter[decode]:
                del counter[decode]

    def forget(self, decode: int) -> None:
        """P has lost this rank: its engines may be anybody's."""
        for engine in self._engines.pop(decode, ()):
            del self.owners[engine]


class Budget:
    """What one beat may make P do."""

    def __init__(self) -> None:
        self._left = BEAT_BUDGET

    def allows(self) -> bool:
        self._left -= 1
        return self._left >= 0


def _num_blocks(wish: Reserve) -> int:
    return _num_places(wish) - sum(group.count(0) for group in wish.blocks)


def _num_places(wish: Reserve) -> int:
    return sum(map(len, wish.blocks))
