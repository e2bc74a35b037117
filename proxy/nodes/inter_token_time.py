"""The time between two tokens of a stream on one node, fitted to what the node reports. Pure."""

from typing import Final

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.faded_line import FadedLine
from baton.proxy.nodes.faded_rate import FadedRate

MAX_S: Final = 60.0  # no node takes longer for a token; one that says so is not believed
MAX_RUNNING: Final = 100_000  # likewise: nor has it more sequences
_LEAST_TOKENS: Final = 8  # for a sample
# Of the node's time for prompts: with more, tokens say little of streams alone, and count only while nothing else is known.
_MOST_SHARE: Final = 0.2
_IDLE_TIMES: Final = 3.0  # a target that is not set: so many times what a stream alone waits


class InterTokenTime:
    """A straight line through the mean times of each report, over the sequences that ran then."""

    __slots__ = ("_count", "_line", "_rate", "_sum_s")

    def __init__(self) -> None:
        self._line = FadedLine()
        self._rate = FadedRate()  # tokens per second
        self._count: int | None = None
        self._sum_s = 0.0

    def learn(self, load: NodeLoad | None, prompt_share: float, now_s: float) -> float | None:
        """Take what a node reports.

        Args:
            load: the report; its counters began with the node's process.
            prompt_share: of the node's time that prompts took. Tokens wait for prompts; what is fitted is without them.
            now_s: monotonic.

        Returns:
            The mean time since the last sample; None if there were too few tokens.
        """
        if load is None or load.inter_token_count is None or load.inter_token_sum_s is None or load.running is None:
            return None
        before, before_s = self._count, self._sum_s
        if before is not None and before <= load.inter_token_count < before + _LEAST_TOKENS:
            return None  # the next report has more
        self._count, self._sum_s = load.inter_token_count, load.inter_token_sum_s
        if before is None or before > load.inter_token_count or load.inter_token_sum_s <= before_s:
            return None
        self._rate.add(load.inter_token_count - before, now_s)
        mean_s = (load.inter_token_sum_s - before_s) / (load.inter_token_count - before)
        if mean_s > MAX_S or load.running > MAX_RUNNING:
            return None
        if prompt_share <= _MOST_SHARE or not self._line.is_known(now_s):
            self._line.add(max(1, load.running), mean_s * (1 - prompt_share), now_s)
        return mean_s

    def begin_again(self) -> None:
        """Count from the next report on: what the node made before it was for others."""
        self._count = None

    def predict_s(self, streams: float, now_s: float) -> float | None:
        """Return the time between two tokens of one of so many streams, without prompts in between; None while too little was seen."""
        line = self._line
        if not line.is_known(now_s):
            return None
        slope_s = line.slope_s() or 0.0
        return line.fixed_s(slope_s) + max(1.0, streams) * slope_s

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
