"""From the tokens of a round to the figures of the pipeline benchmark."""

import pytest

from benchmarks.overlap.subjects import Answer
from benchmarks.pipeline import Cell, Load, Round, ratios, round_of

LOAD = Load("streams", requests=2, prompt_tokens=7, answer_tokens=3)


def test_a_round_counts_all_tokens_from_the_first_request_to_the_last_token() -> None:
    """Twenty tokens within 4 s; first tokens after 1 and 2 s; gaps of 1, 1, 0.5 and 0.5 s."""
    answers = [Answer(10.0, [11.0, 12.0, 13.0], {}), Answer(11.0, [13.0, 13.5, 14.0], {})]

    assert round_of(LOAD, answers) == Round(tokens_per_s=5.0, ttft_s=1.5, itl_s=0.75)


def test_an_answer_of_one_token_has_no_gap() -> None:
    """The loads that only compute prompts have no ITL, and no ratio of it."""
    load = Load("prompts", requests=1, prompt_tokens=9, answer_tokens=1)
    found = round_of(load, [Answer(0.0, [2.0], {})])

    assert found == Round(tokens_per_s=5.0, ttft_s=2.0, itl_s=0.0)
    compared = Cell(link_mbit_s=0, load=load, rounds={"a": [found], "b": [found]})
    assert list(ratios(compared, "a", "b")) == ["throughput", "TTFT"]


def cell() -> Cell:
    """Three rounds of two ways."""
    return Cell(
        link_mbit_s=200,
        load=LOAD,
        rounds={
            "async": [Round(20.0, 1.0, 0.1), Round(30.0, 1.0, 0.2), Round(10.0, 1.0, 0.1)],
            "sync": [Round(10.0, 2.0, 0.1), Round(10.0, 1.0, 0.1), Round(10.0, 4.0, 0.1)],
        },
    )


def test_ratios_are_taken_round_by_round() -> None:
    """What disturbs the machine for longer than a round disturbs both ways."""
    found = ratios(cell(), "async", "sync")

    assert found["throughput"] == (2.0, 1.0, 3.0)
    assert found["TTFT"] == (0.5, 0.25, 1.0)
    assert found["ITL"] == pytest.approx((1.0, 1.0, 2.0))
