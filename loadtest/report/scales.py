"""How values become places on an axis: from 0, or logarithmic where a few values are far from all others. Pure."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from baton.loadtest.measures.percentile import percentile

WIDE: Final = 20.0  # largest value ÷ median: beyond it, a scale from 0 would show one value and a wall
_STEPS: Final = (1, 2, 2.5, 5, 10)
_FEW_DECADES: Final = 2
_MANY_DECADES: Final = 6


class Scale(NamedTuple):
    """A plotted range."""

    most: float
    least: float = 0.0  # above 0: logarithmic, from there

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the scale for some values; what lies below its beginning is shown there."""
        above_0 = sorted(value for value in values if value > 0)
        if not above_0:
            return cls(1.0)
        if above_0[-1] <= WIDE * percentile(above_0, 50):
            return cls(nice(above_0[-1]))
        least = 10.0 ** math.floor(math.log10(percentile(above_0, 1)))
        return cls(10.0 ** math.ceil(math.log10(above_0[-1]) - 1e-9), least)

    @property
    def logarithmic(self) -> bool:
        """Whether equal distances are equal factors."""
        return self.least > 0

    def share(self, value: float) -> float:
        """Return where a value lies: 0 at the beginning, 1 at the end."""
        if not self.logarithmic:
            return value / self.most
        return math.log(max(value, self.least) / self.least) / math.log(self.most / self.least)

    def ticks(self) -> list[float]:
        """Return round numbers from the beginning to the end."""
        if not self.logarithmic:
            step = _step(self.most)
            return [round(step * at, 10) for at in range(round(self.most / step) + 1)]
        first, last = round(math.log10(self.least)), round(math.log10(self.most))
        every = -(-(last - first) // _MANY_DECADES)
        between = (1, 2, 5) if last - first <= _FEW_DECADES else (1,)
        found = [step * 10.0**power for power in range(first, last, every) for step in between]
        return [*found, 10.0**last]


def nice(value: float) -> float:
    """Return the end of an axis that begins at 0: a few round steps, the last one at the value or above it."""
    if not value > 0:
        return 1.0
    step = _step(value)
    return step * math.ceil(value / step - 1e-9)


def _step(value: float) -> float:
    """Return a round number that fits about five times."""
    power = 10.0 ** math.floor(math.log10(value / 5))
    return next(step * power for step in _STEPS if step * power >= value / 5 * (1 - 1e-9))
