"""What a byte takes at each size, as a multiple of what it takes on a line: a prompt's time grows faster than its length. Pure."""

from math import log2
from typing import Final

_SIZES: Final = 32  # powers of two
_FADES: Final = 0.1  # part of a weight that is lost with the next sample of that size: about the last ten count
_PRIOR: Final = 1.0  # samples of a factor of 1 that each size begins with


class SizeFactors:
    """A factor at each power of two; between two of them it changes with the logarithm of the size."""

    __slots__ = ("_sums", "_weights")

    def __init__(self) -> None:
        self._sums = [0.0] * _SIZES
        self._weights = [0.0] * _SIZES

    def at(self, size: float) -> float:
        low, part = _place(size)
        return (1 - part) * self._factor(low) + part * self._factor(low + 1)

    def learn(self, size: float, expected: float, seen: float) -> None:
        """Take one sample.

        Args:
            size: in bytes.
            expected: time of its bytes by the line, as a part of all the time that the line says.
            seen: time of its bytes, likewise.
        """
        low, part = _place(size)
        for at, weight in ((low, 1 - part), (low + 1, part)):
            kept = 1 - _FADES * weight
            self._weights[at] = self._weights[at] * kept + weight * expected
            self._sums[at] = self._sums[at] * kept + weight * seen

    def _factor(self, at: int) -> float:
        """Return the factor at a power of two, or at the nearest one of which there are samples; 1 while there are none."""
        if not self._weights[at]:
            seen = [other for other, weight in enumerate(self._weights) if weight]
            at = min(seen, key=lambda other: abs(other - at), default=at)
        return max(0.0, self._sums[at] + _PRIOR) / (self._weights[at] + _PRIOR)


def _place(size: float) -> tuple[int, float]:
    """Return the power of two below a size, and how far it is on its way to the next one."""
    power = min(log2(1 + size), _SIZES - 1.5)
    low = int(power)
    return low, power - low
