"""Shares of requests that miss their targets, against values worked out by hand."""

from math import exp

import pytest

from baton.proxy.planning.misses import late_first_tokens, slow_answers


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
        (1.0, 0.06, 1 - exp(-0.3 * 1.6)),  # 0.4 s to spare
        (0.3, 0.06, 1 - exp(-0.9) * (1 + 0.9)),
        (0.15, 0.06, 1 - exp(-1.5) * (1 + 1.5 + 1.5**2 / 2)),
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


def test_a_time_too_small_to_divide_by_raises_nothing() -> None:
    slow_answers(0.3, 5e-324, 1e9, 0.02, 0.06)
