"""Which blocks of one transfer are ready, handed out and acknowledged.

Blocks are counted per layer in prompt order, relative to the first block that D wants:

    [0, acknowledged …)   some disjoint ranges of these are being pushed
    [0, handed[layer])    given to the sender
    [0, ready[layer])     written by the device on P
    [0, wanted)           what D asked for

Ranges are handed out once and never overlap, so the sum of acknowledged blocks reaching `wanted * layers` means that
every (layer, block) had a push that returned 0 (I4).
"""

from typing import NamedTuple


class Piece(NamedTuple):
    """Blocks `[start, stop)` of one layer, counted from the first wanted block."""

    layer: int
    start: int
    stop: int


class Coverage:
    """Progress of one epoch over all layers."""

    __slots__ = ("_first", "_handed", "_ready", "acknowledged", "expected", "wanted")

    def __init__(self, *, layers: int, first_block: int, wanted: int, ready: list[int]) -> None:
        self._first = first_block  # block index in the prompt at which D's list begins
        self._ready = ready  # shared with the transfer: blocks of the prompt written, per layer
        self._handed = [0] * layers
        self.wanted = wanted
        self.expected = wanted * layers
        self.acknowledged = 0

    @property
    def complete(self) -> bool:
        """Every wanted block of every layer has been acknowledged."""
        return self.acknowledged == self.expected

    @property
    def pending(self) -> bool:
        """Some ready block has not been handed out."""
        return any(self._available(layer) > handed for layer, handed in enumerate(self._handed))

    def take(self, max_blocks: int) -> tuple[Piece, ...]:
        """Hand out up to `max_blocks` ready blocks, lowest layers first."""
        pieces = []
        for layer, handed in enumerate(self._handed):
            stop = min(self._available(layer), handed + max_blocks)
            if stop > handed:
                pieces.append(Piece(layer, handed, stop))
                self._handed[layer] = stop
                max_blocks -= stop - handed
            if max_blocks == 0:
                break
        return tuple(pieces)

    def acknowledge(self, pieces: tuple[Piece, ...]) -> None:
        """A push of these pieces returned 0."""
        self.acknowledged += sum(piece.stop - piece.start for piece in pieces)

    def _available(self, layer: int) -> int:
        return min(self._ready[layer] - self._first, self.wanted)
