"""Percentiles as numpy's default gives them (linear between the two nearest ranks), and what else describes a sample."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return a percentile of a sorted, non-empty sample."""
    position = (len(ascending) - 1) * percent / 100
    below = math.floor(position)
    low, high = ascending[below], ascending[min(below + 1, len(ascending) - 1)]
    share = position - below
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


class Spread(NamedTuple):
    """A sample, described. All 0 for an empty one, as vLLM prints it."""

    n: int
    mean: float
    std: float  # of the population
    least: float
    most: float
    median: float
    p75: float
    p90: float
    p99: float


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    if not ordered:
        return Spread(0, *[0.0] * 8)
    mean = fmean(ordered)
    std = math.sqrt(fmean((value - mean) ** 2 for value in ordered))
    median, p75, p90, p99 = (percentile(ordered, at) for at in (50, 75, 90, 99))
    return Spread(len(ordered), mean, std, ordered[0], ordered[-1], median, p75, p90, p99)
