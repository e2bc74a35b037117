"""Which share of requests will miss their targets where pairs serve all (first tokens, and answers), and where all nodes are plain servers (answers). Pure."""

from collections.abc import Callable
from math import erfc, exp, inf, sqrt
from typing import Final

_SCATTER: Final = 1.3  # 1 + the squared coefficient of variation of prompts' times
_MANY: Final = 20  # prompts or streams: from there on their number is taken to have a normal distribution


def late_first_tokens(prompt_share: float, prompt_s: float, slack_s: float) -> float:
    """Return the share of prompts that wait for longer than `slack_s`, as in a queue with one server (M/G/1).

    Prompts take `prompt_share` of a prefill node's time, `prompt_s` each on average; from 1 on all wait too long.
    """
    if prompt_share >= 1:
        return 1.0
    if not prompt_s:
        return 0.0
    return prompt_share * exp(-2 * (1 - prompt_share) * max(0.0, slack_s) / (_SCATTER * prompt_s))


def slow_answers(prompt_share: float, prompt_s: float, tokens: float, token_s: float, target_s: float) -> float:
    """Return the share of answers that wait for too many prompts: for one that is being computed as they begin, and for those that come (Poisson).

    Prompts take `prompt_share` of a plain server's time, `prompt_s` each on average. An answer has so many `tokens` on
    average; one takes `token_s` without prompts, and may take `target_s`.
    """
    return _exceeds(tokens * (target_s - token_s) / prompt_s, prompt_share * (1 + tokens * target_s / prompt_s))


def slow_beside_streams(streams: float, tokens_per_s: float, alone_s: float, more_s: float, target_s: float) -> float:
    """Return the share of answers that find too many others on a decode node that computes no prompts.

    As many as in a queue whose answers share the node (M/G/1, processor sharing), or as many as are expected where
    there are so many `streams` now (Poisson), whichever are more. The node has to make `tokens_per_s`. The time between
    two tokens is `alone_s` of a stream alone, `more_s` longer for each other one, and may be `target_s`.
    """
    if alone_s > target_s or tokens_per_s * more_s >= 1:
        return 1.0
    if not more_s:
        return 0.0
    allowed, busy, size = (target_s - alone_s) / more_s, tokens_per_s * more_s, alone_s / more_s
    mean = busy * size / (1 - busy)
    steady = _share_above(allowed, mean, mean / (1 - busy), (1 - busy) ** size, lambda number: busy * (size + number))
    return max(steady, _exceeds(allowed, streams))


def _exceeds(allowed: float, mean: float) -> float:
    """Return the probability that more come than are allowed (Poisson)."""
    return _share_above(allowed, mean, mean, exp(-mean), lambda _: mean)


def _share_above(allowed: float, mean: float, variance: float, none: float, ratio: Callable[[int], float]) -> float:
    """Return the probability of more than are allowed, between two whole numbers in proportion.

    A negative number always is exceeded. The distribution is taken to be normal from `_MANY` on; a mean that is no
    number counts as too many. `none` is the probability of 0, `ratio` (number + 1) times that of number + 1, ÷ that of
    the number.
    """
    if allowed < 0 or not variance < inf:
        return 1.0
    if not mean:
        return 0.0
    if allowed >= _MANY:
        return erfc((allowed + 0.5 - mean) / sqrt(2 * variance)) / 2
    term, few, whole = none, 0.0, int(allowed)
    for number in range(whole + 1):
        few += term
        term *= ratio(number) / (number + 1)
    return max(0.0, 1 - few - (allowed - whole) * term)
