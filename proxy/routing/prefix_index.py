"""Which nodes, of both roles, have seen which prefixes. Pure.

    prefix number ──► bit set of slots         a slot is a node's place in the bit sets

Bounded: entries live in two generations. When the young one is full it becomes the old one, and the old one is dropped;
what a node is given again moves to the young one. So between half of `max_entries` and all of it are kept, those given
last.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from baton.proxy.routing.prefixes import Prefixes

MAX_ENTRIES: Final = 650_000  # of about 100 bytes: what 100 nodes with 100,000 blocks of 16 tokens hold, twice


class Match(NamedTuple):
    """Some nodes that have seen the same part of a prompt."""

    slots: int  # bit set
    depth: int  # leading prefixes that they have seen


def each(matches: Iterable[Match]) -> Iterator[tuple[int, int]]:
    """Slot and depth of each node, those that have seen most first."""
    for slots, depth in matches:
        left = slots
        while left:
            lowest = left & -left
            yield lowest.bit_length() - 1, depth
            left ^= lowest


class PrefixIndex:
    """What each node has been given, as far as it is remembered."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._generation_entries = max(1, max_entries // 2)
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        """Entries kept; one that is in both generations counts twice."""
        return len(self._young) + len(self._old)

    def add(self, prefixes: Prefixes, slot: int) -> None:
        bit = 1 << slot
        for number in prefixes:
            self._put(number, self._get(number) | bit)

    def matches(self, prefixes: Prefixes, among: int) -> Sequence[Match]:
        """Return who of a bit set of slots has seen most, then who has seen less, …; each slot once, none without any."""
        found: list[Match] = []
        alive = among
        for depth, number in enumerate(prefixes):
            still = alive & self._get(number)
            if depth and still != alive:
                found.append(Match(alive ^ still, depth))
            alive = still
            if not alive:
                break
        if alive and prefixes:
            found.append(Match(alive, len(prefixes)))
        return found[::-1]

    def count_seen(self, prefixes: Prefixes, slot: int) -> int:
        count = 0
        for number in prefixes:
            if not self._get(number) >> slot & 1:
                break
            count += 1
        return count

    def forget(self, slot: int) -> None:
        """A node has restarted or is gone: it has seen nothing. Goes through all entries."""
        keep = ~(1 << slot)
        for generation in (self._young, self._old):
            for number, slots in list(generation.items()):
                if slots & ~keep:
                    generation[number] = slots & keep

    def _get(self, number: int) -> int:
        slots = self._young.get(number)
        return self._old.get(number, 0) if slots is None else slots

    def _put(self, number: int, slots: int) -> None:
        if len(self._young) >= self._generation_entries and number not in self._young:
            self._young, self._old = {}, self._young
        self._young[number] = slots
