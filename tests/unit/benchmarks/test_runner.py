"""From rounds to the figures of the runner benchmark."""

import pytest

from benchmarks.runner import ratio


def test_a_ratio_is_the_geometric_mean_of_its_pairs() -> None:
    """Twice and half cancel out, and what disturbs both of a pair disturbs nothing."""
    assert ratio([2.0, 50.0, 3.0], [1.0, 100.0, 3.0]).mean == pytest.approx(1.0)


def test_pairs_that_agree_leave_no_doubt() -> None:
    """The interval closes around the ratio."""
    found = ratio([1.1, 2.2, 4.4, 8.8], [1.0, 2.0, 4.0, 8.0])

    assert found.interval == pytest.approx((1.1, 1.1))


def test_pairs_that_disagree_leave_an_interval_around_the_mean() -> None:
    """It is the same each time."""
    ours = [1.0 + (i % 5) / 10 for i in range(40)]

    found = ratio(ours, [1.0] * 40)

    assert 1.0 < found.interval.low < found.mean < found.interval.high < 1.4
    assert ratio(ours, [1.0] * 40) == found
