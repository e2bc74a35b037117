"""From rounds to the figures of the runner benchmark."""

import pytest

from benchmarks.overlap.subjects import Answer
from benchmarks.runner import Load, Round, ratio, round_of


def test_a_round_counts_all_tokens_from_the_first_request_to_the_last_token() -> None:
    """Twenty tokens within 4 s; first tokens after 1 and 2 s; gaps of 1, 1, 0.5 and 0.5 s."""
    load = Load("streams", requests=2, prompt_tokens=7, answer_tokens=3)
    answers = [Answer(10.0, [11.0, 12.0, 13.0], {}), Answer(11.0, [13.0, 13.5, 14.0], {})]

    assert round_of(load, answers) == Round(tokens_per_s=5.0, ttft_s=1.5, itl_s=0.75)


def test_a_ratio_is_the_geometric_mean_of_its_pairs() -> None:
    """Twice and half cancel out, and what disturbs both of a pair disturbs nothing."""
    assert ratio([2.0, 50.0, 3.0], [1.0, 100.0, 3.0]).mean == pytest.approx(1.0)


def test_pairs_that_disagree_leave_an_interval_around_the_mean() -> None:
    """It is the same each time; of pairs that agree it closes around the ratio."""
    ours = [1.0 + (i % 5) / 10 for i in range(40)]

    found = ratio(ours, [1.0] * 40)

    assert 1.0 < found.interval.low < found.mean < found.interval.high < 1.4
    assert ratio(ours, [1.0] * 40) == found
    assert ratio([1.1, 2.2, 4.4, 8.8], [1.0, 2.0, 4.0, 8.0]).interval == pytest.approx((1.1, 1.1))
