"""From rounds to the figures of the runner benchmark."""

import pytest

from benchmarks.pipeline import Cell, Load, Round
from benchmarks.runner import ratio, table

LOAD = Load("streams", requests=2, prompt_tokens=7, answer_tokens=3)


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


def test_the_table_has_each_server_beside_the_reference() -> None:
    """Medians of the reference, ratios of the others."""
    rounds = {"engine": [Round(10.0, 0.5, 0.01)] * 3, "baton": [Round(10.0, 0.5, 0.02)] * 3}

    lines = table([Cell(link_mbit_s=0, load=LOAD, rounds=rounds)], "engine").splitlines()

    assert lines[0] == "| load | figure | engine, median | baton ÷ engine |"
    assert lines[2] == "| streams | ITL | 10.00 ms | 2.000 (2.000 to 2.000) |"
