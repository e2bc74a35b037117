import random
from collections.abc import Sequence
from statistics import fmean

import pytest

from baton.loadtest.compare.bootstrap import Interval, Weighted, differences
from baton.loadtest.measures.percentile import percentile


class Values:
    """Units with a value each."""

    def __init__(self, values: Sequence[float]) -> None:
        self._weighted = Weighted([(value, at) for at, value in enumerate(values)])
        self.size = len(values)

    def estimates(self, counts: Sequence[int]) -> dict[str, float | None]:
        return {"mean": self._weighted.mean(counts), "median": self._weighted.percentile(counts, 50)}


@pytest.mark.parametrize("percent", [0, 10, 50, 75, 99, 100])
def test_weighted_figures_are_those_of_the_repeated_values(percent: float) -> None:
    """A unit that was picked twice gives all its values twice, one that was not gives none."""
    values = [
        (float(value), unit) for unit, several in enumerate(([5, 1], [3], [9, 2, 2], [], [7])) for value in several
    ]
    counts = [2, 0, 1, 5, 3]
    repeated = sorted(value for value, unit in values for _ in range(counts[unit]))

    weighted = Weighted(values)

    assert weighted.percentile(counts, percent) == pytest.approx(percentile(repeated, percent))
    assert weighted.mean(counts) == pytest.approx(fmean(repeated))


def test_nothing_picked_has_no_figure() -> None:
    """None, not 0."""
    assert Weighted([(1.0, 0)]).mean([0]) is None
    assert Weighted([(1.0, 0)]).percentile([0], 50) is None


@pytest.mark.parametrize("name", ["mean", "median"])
def test_intervals_hold_the_truth_about_as_often_as_they_say(name: str) -> None:
    """Of 150 pairs of runs that differ by 1 on average, nine in ten at 90 %; the interval is for the difference."""
    rng, held = random.Random(7), 0
    for trial in range(150):
        a = Values([rng.gauss(10, 2) for _ in range(40)])
        b = Values([rng.gauss(11, 3) for _ in range(40)])
        low, high = differences(a, b, resamples=150, seed=trial, confidence=0.9)[name].difference
        held += low <= 1 <= high

    assert 0.83 <= held / 150 <= 0.97


def test_a_seed_gives_the_same_intervals_again() -> None:
    """And both the difference and the ratio are of b against a."""
    a, b = Values([1.0, 2.0, 3.0]), Values([2.0, 4.0, 6.0])
    one = differences(a, b, resamples=50, seed=1, confidence=0.9)

    assert one == differences(a, b, resamples=50, seed=1, confidence=0.9)
    assert one["mean"].difference != differences(a, b, resamples=50, seed=2, confidence=0.9)["mean"].difference
    assert (one["mean"].a, one["mean"].b) == (2.0, 4.0)


def test_a_ratio_to_nothing_is_none() -> None:
    """Shares are often 0."""
    found = differences(Values([0.0, 0.0]), Values([1.0, 1.0]), resamples=20, seed=0, confidence=0.9)

    assert found["mean"].ratio is None
    assert found["mean"].difference == Interval(1.0, 1.0)
