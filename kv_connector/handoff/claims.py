"""What the decode ranks may have at once on P, so that none of them can make P's memory grow, or take another's.

The bounds are far beyond what a healthy rank needs. One that asks for more is told so and computes the prompt itself.

An engine belongs to the first rank that names it, for as long as P knows that rank: nobody can make P write through
another's engine, into another's memory.
"""

from collections import Counter

from kv_connector.protocol import MAX_OPEN

MAX_PEERS = 1_024  # decode ranks, those that restarted within the last `peer_timeout_s` included
MAX_UNSTARTED = 8 * MAX_OPEN  # transfers that decode ranks asked for and whose prompt has not started here
MAX_BLOCKS_EACH = 1 << 20  # block ids in a rank's open reservations: pools are smaller
BEAT_BUDGET = 1_024  # transfers that one beat may begin, end or have answered: others wait for us meanwhile
MAX_ENGINES_EACH = 64  # names that a rank has given to its engines, one after the other


class Claims:
    """Who has how much."""

    def __init__(self) -> None:
        self.transfers: Counter[int] = Counter()  # by decode rank
        self.blocks: Counter[int] = Counter()
        self.owners: dict[str, int] = {}  # engine → decode rank
        self._engines: dict[int, list[str]] = {}  # decode rank → its engines, oldest first

    def may_have_another(self, decode: int) -> bool:
        """Whether a rank may have one more transfer."""
        return self.transfers[decode] < MAX_OPEN

    def may_reserve(self, decode: int, blocks: int) -> bool:
        """Whether a rank may have so many more blocks written."""
        return self.blocks[decode] + blocks <= MAX_BLOCKS_EACH

    def may_use(self, decode: int, engine: str) -> bool:
        """Whether an engine is this rank's, or nobody's yet."""
        return self.owners.get(engine, decode) == decode

    def take(self, decode: int, *, transfers: int = 0, blocks: int = 0, engine: str = "") -> None:
        """A rank has more; the caller has asked whether it may."""
        self.transfers[decode] += transfers
        self.blocks[decode] += blocks
        if engine and engine not in self.owners:
            mine = self._engines.setdefault(decode, [])
            if len(mine) == MAX_ENGINES_EACH:
                del self.owners[mine.pop(0)]
            mine.append(engine)
            self.owners[engine] = decode

    def give(self, decode: int, *, transfers: int, blocks: int) -> None:
        """A rank has less."""
        for counter, number in ((self.transfers, transfers), (self.blocks, blocks)):
            counter[decode] -= number
            if not counter[decode]:
                del counter[decode]

    def forget(self, decode: int) -> None:
        """P has lost this rank: its engines may be anybody's."""
        for engine in self._engines.pop(decode, ()):
            del self.owners[engine]
