"""The bootstrap: what a figure would have been, had chance picked other units of the same run.

A resample is drawn as counts: how often each unit was picked. `Units` turn counts into figures.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from baton.loadtest.measures.percentile import percentile


class Units(Protocol):
    """What is resampled."""

    size: int

    def estimates(self, counts: Sequence[int]) -> Mapping[str, float | None]:
        """Return the figures by name, each unit taken so often; None where there is nothing to compute one from."""
        ...


class Interval(NamedTuple):
    """Where a value lies, at a confidence."""

    low: float
    high: float


class Difference(NamedTuple):
    """One figure of two runs."""

    a: float
    b: float
    difference: Interval  # of b - a
    ratio: Interval | None  # of b ÷ a; None where a may be 0


def counts_of(rng: random.Random, size: int) -> list[int]:
    counts = [0] * size
    for at in rng.choices(range(size), k=size):
        counts[at] += 1
    return counts


def differences(a: Units, b: Units, *, resamples: int, seed: int, confidence: float) -> dict[str, Difference]:
    exact_a, exact_b = a.estimates([1] * a.size), b.estimates([1] * b.size)
    drawn_a, drawn_b = _draw(a, resamples, f"{seed}/a"), _draw(b, resamples, f"{seed}/b")
    found = {}
    for name, value_a in exact_a.items():
        value_b = exact_b.get(name)
        if value_a is None or value_b is None:
            continue
        both = [
            (one, other)
            for one, other in zip((d[name] for d in drawn_a), (d[name] for d in drawn_b), strict=True)
            if one is not None and other is not None
        ]
        if both:
            found[name] = Difference(
                value_a, value_b, _interval(both, lambda one, other: other - one, confidence), _ratio(both, confidence)
            )
    return found


def _draw(units: Units, resamples: int, seed: str) -> list[Mapping[str, float | None]]:
    rng = random.Random(seed)
    return [units.estimates(counts_of(rng, units.size)) for _ in range(resamples)]


def _ratio(both: Sequence[tuple[float, float]], confidence: float) -> Interval | None:
    if any(one <= 0 for one, _ in both):
        return None
    return _interval(both, lambda one, other: other / one, confidence)


def _interval(
    both: Sequence[tuple[float, float]], value: Callable[[float, float], float], confidence: float
) -> Interval:
    ordered = sorted(value(one, other) for one, other in both)
    tail = 50 * (1 - confidence)
    return Interval(percentile(ordered, tail), percentile(ordered, 100 - tail))


class Weighted:
    """Values that belong to units; a unit may have several, or none."""

    def __init__(self, values: Sequence[tuple[float, int]]) -> None:
        """Take values, each with the index of its unit."""
        self._ascending = sorted(values)
        sums: dict[int, tuple[float, int]] = {}
        for value, unit in values:
            total, n = sums.get(unit, (0.0, 0))
            sums[unit] = total + value, n + 1
        self._sums = [(unit, total, n) for unit, (total, n) in sums.items()]

    def mean(self, counts: Sequence[int]) -> float | None:
        n = self._taken(counts)
        return sum(counts[unit] * total for unit, total, _ in self._sums) / n if n else None

    def percentile(self, counts: Sequence[int], percent: float) -> float | None:
        """Return a percentile, likewise; walked to from the nearer end."""
        n = self._taken(counts)
        if not n:
            return None
        position = (n - 1) * percent / 100
        below = math.floor(position)
        if percent <= 50:
            low, high = self._ranks(counts, below, min(below + 1, n - 1), from_top=False)
        else:
            high, low = self._ranks(counts, n - 1 - min(below + 1, n - 1), n - 1 - below, from_top=True)
        return low + (high - low) * (position - below)

    def _taken(self, counts: Sequence[int]) -> int:
        return sum(counts[unit] * n for unit, _, n in self._sums)

    def _ranks(self, counts: Sequence[int], first: int, second: int, *, from_top: bool) -> tuple[float, float]:
        """Return the values at two ranks, counted from one end."""
        passed, found = 0, None
        for value, unit in reversed(self._ascending) if from_top else self._ascending:
            passed += counts[unit]
            if found is None and passed > first:
                found = value
            if found is not None and passed > second:
                return found, value
        raise AssertionError("ranks lie within what was taken")
