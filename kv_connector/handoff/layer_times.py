"""When each layer of a prompt was written and pushed, for people who look at single transfers.

Numbers in flat arrays, since a prefill rank keeps them of its last transfers whether anybody asks or not. Written on
the sender's thread, with the worker's lock held.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from baton.kv_connector.handoff.pushing import Piece

MAX_EVENTS: Final = 2_048  # of either kind, for one transfer: 80 layers in 25 chunks
REMEMBERED: Final = 32  # transfers that have ended


class _Begun(NamedTuple):
    pieces: tuple[Piece, ...]
    at_s: float


class LayerTimes:
    """Times of one transfer's layers."""

    __slots__ = ("_begun", "_lost", "_pushes", "_written")

    def __init__(self) -> None:
        self._written = array("d")  # instant, layer; again and again
        self._pushes = array("d")  # begin, end, first layer, last layer, blocks of layers
        self._begun: list[_Begun] = []
        self._lost = 0  # events beyond what is kept

    def wrote(self, layer: int, now: float) -> None:
        """The sender saw that more of a layer is written."""
        if len(self._written) < 2 * MAX_EVENTS:
            self._written.extend((now, layer))
        else:
            self._lost += 1

    def begins(self, pieces: tuple[Piece, ...], now: float) -> None:
        self._begun.append(_Begun(pieces, now))

    def ends(self, pieces: tuple[Piece, ...], now: float) -> None:
        """It has ended. A piece is pushed once, so the pieces say which call it was."""
        begun = next((each for each in self._begun if each.pieces == pieces), None)
        if begun is None:
            return
        self._begun.remove(begun)
        if len(self._pushes) < 5 * MAX_EVENTS:
            self._pushes.extend((begun.at_s, now, *_extent(pieces)))
        else:
            self._lost += 1

    def snapshot(self, origin_s: float) -> dict[str, Any]:
        """Return plain data; instants count from `origin_s`, in s. A push that has not ended has no end."""
        written, pushes = self._written, self._pushes
        ended = [
            [_since(pushes[at], origin_s), _since(pushes[at + 1], origin_s), *map(int, pushes[at + 2 : at + 5])]
            for at in range(0, len(pushes), 5)
        ]
        open_ = [[_since(each.at_s, origin_s), None, *_extent(each.pieces)] for each in self._begun]
        return {
            "written": [[_since(written[at], origin_s), int(written[at + 1])] for at in range(0, len(written), 2)],
            "pushes": ended + open_,
            "lost": self._lost,
        }


def _since(at_s: float, origin_s: float) -> float:
    return round(at_s - origin_s, 6)


def _extent(pieces: Sequence[Piece]) -> tuple[int, int, int]:
    """First and last layer, and how many blocks of layers."""
    layers = [piece.layer for piece in pieces]
    return min(layers), max(layers), sum(piece.stop - piece.start for piece in pieces)
