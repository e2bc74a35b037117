"""Which units of one transfer are ready, handed out and acknowledged.

A *unit* is as many tokens as the smaller block of the two sides has: a block, where both have the same. Units are
counted per layer in prompt order, relative to the first unit that D wants:

    [0, acknowledged …)   some disjoint ranges of these are being pushed
    [0, handed[layer])    given to the sender
    [0, ready[layer])     written by the device on P
    [0, wanted)           what D asked for; a layer with a window has a *span* of its own, a part of it, where
                          handing out begins and ends

Ranges are handed out once and never overlap, so the sum of acknowledged units reaching that of all spans means that
every wanted (layer, unit) had a push that returned 0 (I4).

`worker_side/sync.py` says when a layer has been written, `producer.py` which transfer's units are pushed next.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from baton.kv_connector.layout.windows import EVERYTHING


class GroupPair(NamedTuple):
    """The KV cache group of a layer, by its number on either side, its window, and the places that a block stands for."""

    ours: int = 0
    theirs: int = 0
    window: int = EVERYTHING
    places: int = 1


ONLY = GroupPair()
ONE_GROUP: Mapping[int, GroupPair] = {}  # no code writes to it; the explorer pickles it


class TransferLayout(NamedTuple):
    """What two ranks found when they introduced themselves to each other."""

    layers: Sequence[int]  # of P's, that D's rank has too; may be none
    block_units: int = 1  # units in a block of P's
    their_block_units: int = 1  # in one of D's
    shares: int = 0  # see `Commit.shares`
    whole: bool = True  # whole blocks travel, to blocks of the same size: digests of them can be compared
    regions: Sequence[int] = ()  # P's, by number, of which something travels
    groups: Mapping[int, GroupPair] = ONE_GROUP  # by layer; one that is not named is in the first

    def group_of(self, layer: int) -> GroupPair:
        return self.groups.get(layer, ONLY)


NOTHING = TransferLayout(())


class Piece(NamedTuple):
    """Units `[start, stop)` of one layer, counted from the first wanted unit."""

    layer: int
    start: int
    stop: int


class Coverage:
    """Progress of one epoch over all layers."""

    __slots__ = ("_block_units", "_first", "_handed", "_ready", "_stop", "acknowledged", "expected")

    def __init__(
        self,
        *,
        layers: Sequence[int],
        first_unit: int,
        wanted: int,
        ready: list[int],
        block_units: int = 1,
        spans: Mapping[int, range] = MappingProxyType({}),
    ) -> None:
        """Begin.

        Args:
            layers: Those that D wants something of.
            first_unit: Unit of the prompt at which D's list begins.
            wanted: Units from there on.
            ready: Blocks of the prompt written, by layer; shared with the transfer.
            block_units: Units in a block of P's.
            spans: Of a layer the units that it has to push, counted from `first_unit`; by default all that are wanted.
        """
        whole = range(wanted)
        self._first = first_unit
        self._ready = ready
        self._block_units = block_units
        self._handed = {layer: spans.get(layer, whole).start for layer in layers}
        self._stop = {layer: spans.get(layer, whole).stop for layer in layers}
        self.expected = sum(len(spans.get(layer, whole)) for layer in layers)
        self.acknowledged = 0

    @property
    def complete(self) -> bool:
        """Every wanted unit of every layer has been acknowledged."""
        return self.acknowledged == self.expected

    @property
    def pending(self) -> bool:
        """Some ready unit has not been handed out."""
        return any(self._available(layer) > handed for layer, handed in self._handed.items())

    def take(self, max_units: int) -> tuple[Piece, ...]:
        """Hand out up to `max_units` ready units, lowest layers first."""
        pieces = []
        for layer, handed in self._handed.items():
            stop = min(self._available(layer), handed + max_units)
            if stop > handed:
                pieces.append(Piece(layer, handed, stop))
                self._handed[layer] = stop
                max_units -= stop - handed
            if max_units == 0:
                break
        return tuple(pieces)

    def acknowledge(self, pieces: tuple[Piece, ...]) -> None:
        """A push of these pieces returned 0."""
        self.acknowledged += sum(piece.stop - piece.start for piece in pieces)

    def _available(self, layer: int) -> int:
        return min(self._ready[layer] * self._block_units - self._first, self._stop[layer])
