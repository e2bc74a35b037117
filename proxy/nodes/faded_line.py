"""A straight line through samples that fade, by least squares. Pure."""

from typing import Final

MIN_SAMPLES: Final = 8  # before that nothing is predicted
MAX_AGE_S: Final = 300.0  # nor if the last sample is older: a node that was slow gets another chance
KEPT: Final = 0.98  # weight of a sample when the next one comes: about the last 50 count
# Samples that lie closer together than this, in relation to their mean, say nothing about the slope.
_LEAST_SPREAD: Final = 0.1


class FadedLine:
    """Times in seconds over amounts."""

    __slots__ = ("_both", "_last_s", "_samples", "_squares", "_sum", "_sum_s", "_weight")

    def __init__(self) -> None:
        self._last_s = 0.0  # monotonic
        self._samples = 0
        self._weight = self._sum = self._sum_s = self._squares = self._both = 0.0

    def add(self, amount: float, time_s: float, now_s: float, *, weight: float = 1.0) -> None:
        self._samples += 1
        self._last_s = now_s
        self._weight = self._weight * KEPT + weight
        self._sum = self._sum * KEPT + weight * amount
        self._sum_s = self._sum_s * KEPT + weight * time_s
        self._squares = self._squares * KEPT + weight * amount * amount
        self._both = self._both * KEPT + weight * amount * time_s

    def is_known(self, now_s: float) -> bool:
        return self._samples >= MIN_SAMPLES and now_s - self._last_s <= MAX_AGE_S

    @property
    def has_amounts(self) -> bool:
        """Whether a sample above 0 was seen."""
        return self._sum > 0

    @property
    def mean(self) -> float:
        """Of the amounts; at least one sample is needed."""
        return self._sum / self._weight

    @property
    def mean_s(self) -> float:
        return self._sum_s / self._weight

    def slope_s(self) -> float | None:
        """Return the time that one more takes, at least 0; None where the samples do not say."""
        mean = self.mean
        variance = self._squares / self._weight - mean * mean
        spread = _LEAST_SPREAD * mean
        if variance <= spread * spread:
            return None
        slope = (self._both / self._weight - mean * self.mean_s) / variance
        return max(0.0, slope) if slope * mean <= self.mean_s else self._both / self._squares

    def fixed_s(self, slope_s: float) -> float:
        """Return the time of an amount of 0, on a line of that slope; at least 0, since no node begins before it is asked."""
        return max(0.0, self.mean_s - self.mean * slope_s)
