"""How long a node takes until a prompt's first token, fitted to what was seen of it. Pure."""

from math import inf, sqrt
from typing import Final

from baton.proxy.nodes.cached_cost import CachedCost, PromptParts
from baton.proxy.nodes.faded_line import KEPT, MAX_AGE_S, FadedLine

MAX_BYTES: Final = 1e9  # no node has more to compute; one that says so is not believed
_LEAST_S: Final = 0.001  # times are compared with no less than that
# A time that is so many times longer than expected, or shorter, counts as that: one stall says little.
_OUTLIER: Final = 4.0


class PrefillTime:
    """A straight line through the times that were seen, over bytes of prompt.

    Prompts weigh by 1 ÷ the square of (their length + a tenth of the mean length): a part of what a short prompt takes
    is as much as the same part of what a long one takes, however fast the node is.
    """

    __slots__ = (
        "_bytes",
        "_cached",
        "_count",
        "_errors",
        "_fixed_s",
        "_last_s",
        "_line",
        "_seconds",
        "_wrong_by",
        "per_byte_s",
    )

    def __init__(self) -> None:
        self._last_s = -inf  # monotonic
        self._begin()

    def _begin(self) -> None:
        self._line = FadedLine()
        self._cached = CachedCost()
        self._fixed_s = self.per_byte_s = 0.0
        # Faded sums: of samples, of their bytes and seconds; of predictions, and of the squares of the shares that they
        # were wrong by.
        self._count = self._bytes = self._seconds = self._errors = self._wrong_by = 0.0

    @property
    def spread(self) -> float:
        """The share that predictions were wrong by: the root of the mean square."""
        return sqrt(self._wrong_by / self._errors) if self._errors else 0.0

    @property
    def cached_cost(self) -> float:
        """What a byte of prompt costs that the node has in its cache, as a share of one that it computes: attention reads both."""
        return self._cached.cost

    def learn(self, prompt_bytes: float, time_s: float, now_s: float, *, unqueued: PromptParts | None = None) -> None:
        """Take one sample.

        Args:
            prompt_bytes: what the prompt takes, and all prompts before it, in bytes that are computed.
            time_s: from sending the prompt until its first token.
            now_s: monotonic.
            unqueued: the prompt's parts, if little waited before it.
        """
        if not 0 <= prompt_bytes <= MAX_BYTES:
            return
        if now_s - self._last_s > MAX_AGE_S:
            # A node that is taken to be slow gets few prompts: old times would stay for hours.
            self._begin()
        self._last_s = now_s
        if self._count:
            line_s, is_known = self._fixed_s + prompt_bytes * self.per_byte_s, self._line.is_known(now_s)
            expected_s = max(_LEAST_S, line_s)
            if self._count <= 1.0 and time_s < line_s / _OUTLIER:  # the first one was odd: it was compiling
                self._begin()
            else:
                time_s = min(max(time_s, expected_s / _OUTLIER), expected_s * _OUTLIER)
            if is_known:
                self._errors = self._errors * KEPT + 1
                self._wrong_by = self._wrong_by * KEPT + (time_s / expected_s - 1) ** 2
        if unqueued is not None:
            self._cached.add(unqueued, time_s)
        line = self._line
        self._count = self._count * KEPT + 1
        self._bytes = self._bytes * KEPT + prompt_bytes
        self._seconds = self._seconds * KEPT + time_s
        line.add(prompt_bytes, time_s, now_s, weight=(1 + prompt_bytes + self._bytes / self._count / 10) ** -2)
        if (slope := line.slope_s()) is None:  # it takes so much by the byte
            slope = line.mean_s / line.mean if line.has_amounts else 0.0
        self.per_byte_s = slope
        self._fixed_s = line.fixed_s(slope)

    def predict_s(self, prompt_bytes: float, now_s: float) -> float | None:
        """Return the time that a prompt will take, with all prompts before it; None while too little was seen."""
        return self._fixed_s + prompt_bytes * self.per_byte_s if self._line.is_known(now_s) else None

    def known_per_byte_s(self, now_s: float) -> float:
        """Return the time that a byte takes more; 0 while too little was seen."""
        return self.per_byte_s if self._line.is_known(now_s) else 0.0

    def limit_s(self, prompt_bytes: float) -> float:
        """Return a time that prompts of this length will hardly exceed: as if none of the seen times had been fixed; 0 before the first.

        Times that scatter can make the line too flat, or level; far beyond the lengths that were seen it says nothing.
        """
        return prompt_bytes * self._seconds / self._bytes if self._bytes else 0.0
