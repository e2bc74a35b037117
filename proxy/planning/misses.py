"""Which share of requests will miss their targets: the first tokens where pairs serve all, the answers where all nodes are plain servers. Pure."""

from math import erfc, exp, sqrt
from typing import Final

_SCATTER: Final = 1.3  # 1 + the squared coefficient of variation of prompts' times
_MANY: Final = 20  # prompts: from there on their number is taken to have a normal distribution


def late_first_tokens(prompt_share: float, prompt_s: float, slack_s: float) -> float:
    """Return the share of prompts that wait for longer than their target leaves, as in a queue with one server (M/G/1).

    Args:
        prompt_share: of a prefill node's time, that prompts take; from 1 on all wait too long.
        prompt_s: what a prompt takes, on average.
        slack_s: how long a prompt may wait.
    """
    if prompt_share >= 1:
        return 1.0
    return prompt_share * exp(-2 * (1 - prompt_share) * max(0.0, slack_s) / (_SCATTER * prompt_s))


def slow_answers(prompt_share: float, prompt_s: float, tokens: float, token_s: float, target_s: float) -> float:
    """Return the share of answers that wait for too many prompts: for one that is being computed as they begin, and for those that come (Poisson).

    Args:
        prompt_share: of a plain server's time, that prompts take.
        prompt_s: what a prompt takes, on average.
        tokens: of an answer, on average.
        token_s: what a token takes without prompts.
        target_s: what a token may take.
    """
    allowed = tokens * (target_s - token_s) / prompt_s
    mean = prompt_share * (1 + tokens * target_s / prompt_s)
    if allowed >= _MANY:
        return erfc((allowed - mean) / sqrt(2 * mean)) / 2
    if allowed < 0:
        return 1.0
    term = few = exp(-mean)
    for number in range(1, int(allowed) + 1):
        term *= mean / number
        few += term
    return 1 - few
