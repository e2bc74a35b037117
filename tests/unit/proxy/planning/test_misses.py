"""Shares of requests that miss their targets, against values worked out by hand."""

from math import exp, inf

import pytest

from baton.proxy.planning.misses import late_first_tokens, slow_answers, slow_beside_streams


@pytest.mark.parametrize(
    ("prompt_share", "slack_s", "late"),
    [
        (0.0, 1.0, 0.0),
        (0.5, 0.0, 0.5),
        (0.5, -1.0, 0.5),
        (0.5, 2.6, 0.5 * exp(-1)),
        (0.75, 2.6, 0.75 * exp(-0.5)),
        (1.0, 9.0, 1.0),
    ],
)
def test_a_first_token_is_late_behind_others(prompt_share: float, slack_s: float, late: float) -> None:
    """Prompts of 2 s: without slack every one that finds another one there; a full queue grows without end."""
    assert late_first_tokens(prompt_share, 2.0, slack_s) == pytest.approx(late)


@pytest.mark.parametrize(
    ("prompt_s", "target_s", "slow"),
    [
        (1.0, 0.06, 1 - exp(-0.48) * (1 + 0.4 * 0.48)),  # there is time for 0.4 of one
        (0.4, 0.06, 1 - exp(-0.75) * (1 + 0.75)),
        (0.16, 0.06, 1 - exp(-1.425) * (1 + 1.425 + 1.425**2 / 2 + 0.5 * 1.425**3 / 6)),
        (0.001, 0.06, 0.0),  # 180 come, and there is time for 400
        (0.001, 0.025, 0.998),  # 75.3, for 50
        (0.0101, 0.0602, 1 - 0.999999),  # 18.2, for 39.8
        (1.0, 0.01, 1.0),
    ],
)
def test_an_answer_is_slow_behind_more_prompts_than_its_target_leaves_time_for(
    prompt_s: float, target_s: float, slow: float
) -> None:
    """Ten tokens of 20 ms, on a server three tenths of whose time prompts take."""
    assert slow_answers(0.3, prompt_s, 10, 0.02, target_s) == pytest.approx(slow, abs=1e-3)


@pytest.mark.parametrize(
    ("streams", "tokens_per_s", "more_s", "target_s", "slow"),
    [
        (0, 0.0, 0.01, 0.048, 0.0),
        (2, 0.0, 0.01, 0.05, 1 - exp(-2) * (1 + 2 + 2 + 8 / 6)),
        (0, 50.0, 0.01, 0.05, 1 - 1 / 4 - 1 / 4 - 3 / 16 - 1 / 8),  # two streams on average
        (0, 50.0, 0.01, 0.045, 1 - 1 / 4 - 1 / 4 - 3 / 16 - 1 / 16),
        (6, 50.0, 0.01, 0.05, 1 - exp(-6) * (1 + 6 + 18 + 36)),
        (0, 20.0, 0.02, 0.04, 0.4**2),  # each makes it as much slower
        (0, 100.0, 0.01, 0.048, 1.0),  # however many streams there are, they make no more
        (0, 0.0, 0.01, 0.019, 1.0),
        (0, 0.0, 0.01, 0.02, 0.0),  # alone
        (90, 9000.0, 0.0, 0.021, 0.0),
        (0, 0.0, 0.0, 0.019, 1.0),
        (30, 0.0, 0.001, 0.048, 0.608),  # 28 are allowed
        (20, 0.0, 0.001, 0.04, 0.4555),  # 20 are, and their number is taken to be normal from there on
        (0, 9.0, 1e-9, 0.048, 0.0),
        (0, 50_000.0, 1e-6, 0.0211, 0.075),  # 1,053 on average, and 1,100 are allowed
    ],
)
def test_an_answer_is_slow_beside_more_streams_than_its_target_leaves_time_for(
    streams: int, tokens_per_s: float, more_s: float, target_s: float, slow: float
) -> None:
    """Twenty milliseconds for a stream alone; as many streams as there are, or as a queue has that makes so many tokens."""
    assert slow_beside_streams(streams, tokens_per_s, 0.02, more_s, target_s) == pytest.approx(slow, abs=2e-3)


def test_numbers_out_of_all_proportion_raise_nothing() -> None:
    assert slow_answers(0.3, 5e-324, 1e9, 0.02, 0.06) == 1.0
    assert slow_answers(0.0, 0.1, inf, 0.06, 0.06) == 1.0
    assert late_first_tokens(0.0, 0.0, -1.0) == 0.0
    assert late_first_tokens(1.5, 0.1, 1.0) == late_first_tokens(1.0, 0.1, 1.0) == 1.0
    assert slow_beside_streams(1 << 53, 1e15, 1e-300, 1e-300, 0.06) == 0.0
