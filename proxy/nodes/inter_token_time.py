"""The time between two tokens of a stream on one node, fitted to what the node reports. Pure."""

from typing import Final

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.faded_line import FadedLine
from baton.proxy.nodes.faded_rate import WINDOW_S, FadedRate

MAX_S: Final = 60.0  # no node takes longer for a token; one that says so is not believed
MAX_RUNNING: Final = 100_000  # likewise: nor has it more sequences
MAX_TOKENS_PER_S: Final = 1e6  # likewise: nor makes it more
_LEAST_TOKENS: Final = 8  # for a sample
# A mean that is so many times longer than expected counts as that: what disturbs a node only adds to it, and one sample
# at a new number of streams makes the slope.
_OUTLIER: Final = 1.5
_IDLE_TIMES: Final = 3.0  # a target that is not set: so many times what a stream alone waits


class InterTokenTime:
    """A straight line through the mean times of each report, over the sequences that ran then."""

    __slots__ = ("_at_s", "_count", "_fixed_s", "_line", "_rate", "_share", "_slope_s", "_sum_s")

    def __init__(self) -> None:
        self._line = FadedLine()
        self._fixed_s = self._slope_s = 0.0  # of that line
        self._rate = FadedRate()  # tokens per second
        self._count: int | None = None
        self._sum_s = 0.0
        self._at_s = 0.0  # of the last report, monotonic
        self._share: float | None = None  # the greatest share of prompts since the last sample, if there were any

    def learn(self, load: NodeLoad | None, prompt_share: float | None, now_s: float) -> float | None:
        """Take what a node reports.

        Args:
            load: the report; its counters began with the node's process.
            prompt_share: of the node's time that prompts took; None if it computed none since the report before. Tokens
                that wait for prompts say little of streams alone: while nothing else is known they count less that
                share, later only where they show that streams wait less than was thought.
            now_s: monotonic.

        Returns:
            The mean time since the last sample; None if there were too few tokens.
        """
        if prompt_share is not None:
            self._share = max(self._share or 0.0, prompt_share)
        if load is None or load.inter_token_count is None or load.inter_token_sum_s is None or load.running is None:
            return None
        before, before_s, at_s, self._at_s = self._count, self._sum_s, self._at_s, now_s
        if before is not None and before <= load.inter_token_count < before + _LEAST_TOKENS:
            return None  # the next report has more
        share, self._share = self._share, None
        self._count, self._sum_s = load.inter_token_count, load.inter_token_sum_s
        if before is None or before > load.inter_token_count or load.inter_token_sum_s <= before_s:
            return None
        made, took_s = load.inter_token_count - before, now_s - at_s
        mean_s = (load.inter_token_sum_s - before_s) / made
        if mean_s > MAX_S or load.running > MAX_RUNNING or made > MAX_TOKENS_PER_S * (took_s + 1):
            return None
        self._rate.add(made * WINDOW_S / max(WINDOW_S, took_s), now_s)
        expected_s = self.predict_s(load.running, now_s)
        if share is None or expected_s is None or mean_s < expected_s:
            seen_s = mean_s * (1 - (share or 0.0)) if expected_s is None else min(mean_s, _OUTLIER * expected_s)
            self._line.add(max(1, load.running), seen_s, now_s)
            self._slope_s = self._line.slope_s() or 0.0
            self._fixed_s = self._line.fixed_s(self._slope_s)
        return mean_s

    def begin_again(self) -> None:
        """Count from the next report on: what the node made before it was for others."""
        self._count = None

    def predict_s(self, streams: float, now_s: float) -> float | None:
        """Return the time between two tokens of one of so many streams, without prompts in between; None while too little was seen."""
        return self._fixed_s + max(1.0, streams) * self._slope_s if self._line.is_known(now_s) else None

    def target_s(self, given_s: float, now_s: float) -> float:
        """Return the time between two tokens that is aimed at; 0 while nothing is known."""
        return given_s or _IDLE_TIMES * (self.predict_s(1, now_s) or 0.0)

    def tokens_per_s(self, now_s: float) -> float:
        """Return the tokens of all its streams."""
        return self._rate.at(now_s)

    def busy_share(self, now_s: float) -> float:
        """Return the share of the time in which it has streams, if they are always as many; 0 while too little was seen."""
        line = self._line
        return self._rate.at(now_s) * line.mean_s / line.mean if line.is_known(now_s) else 0.0

    def utilisation(self, given_target_s: float, now_s: float) -> float | None:
        """Return the tokens per second ÷ those of as many streams as the target allows; None while too little was seen."""
        alone_s, target_s = self.predict_s(1, now_s), self.target_s(given_target_s, now_s)
        if alone_s is None:
            return None
        more_s = self._line.slope_s()
        if more_s is None and self._rate.at(now_s) >= 1.0:
            # It has always had as many streams, or none: how many it could have is not known.
            return min(1.0, self.busy_share(now_s)) * alone_s / given_target_s if given_target_s else None
        if not more_s:  # it is idle, or no stream has made others slower
            return 0.0
        streams = max(1.0, 1 + (target_s - alone_s) / more_s)
        return self._rate.at(now_s) * max(target_s, alone_s) / streams
