"""How long a node takes until a prompt's first token, fitted to what was seen of it. Pure."""

from typing import Final

from baton.proxy.nodes.faded_line import FadedLine

MAX_BYTES: Final = 1e9  # no node has more to compute; one that says so is not believed
_LEAST_S: Final = 0.001  # no first token is expected sooner
_OUTLIER: Final = (
    4.0  # a time that is so many times longer than expected, or shorter, counts as that: one stall says little
)


class PrefillTime:
    """A straight line through the times that were seen, over bytes of prompt, with the least squares of relative errors: of short prompts a tenth is less than of long ones."""

    __slots__ = ("_fixed_s", "_line", "per_byte_s", "spread")

    def __init__(self) -> None:
        # A node that is taken to be slow gets few prompts: old times would stay for hours.
        self._line = FadedLine(forgets=True)
        self._fixed_s = self.per_byte_s = 0.0
        self.spread = 0.0  # by which share times were longer or shorter than predicted

    def learn(self, prompt_bytes: float, time_s: float, now_s: float) -> None:
        """Take one sample.

        Args:
            prompt_bytes: of the prompt, less what the node was believed to have, and of all prompts before it.
            time_s: from sending the prompt until its first token.
            now_s: monotonic.
        """
        if not 0 <= prompt_bytes <= MAX_BYTES:
            return
        line = self._line
        expected_s = time_s
        if line.is_known(now_s, samples=1):
            expected_s = self._fixed_s + prompt_bytes * self.per_byte_s
            time_s = min(max(time_s, expected_s / _OUTLIER), expected_s * _OUTLIER)
        line.add(prompt_bytes, time_s, now_s, weight=max(expected_s, _LEAST_S) ** -2)
        if (slope := line.slope_s()) is None:  # it takes so much by the byte
            slope = line.mean_s / line.mean if line.has_amounts else 0.0
        self.per_byte_s = slope
        self._fixed_s = line.fixed_s(slope)
        self.spread = line.spread(slope)

    def predict_s(self, prompt_bytes: float, now_s: float) -> float | None:
        """Return the time that a prompt will take, with all prompts before it; None while too little was seen."""
        return self._fixed_s + prompt_bytes * self.per_byte_s if self._line.is_known(now_s) else None

    def limit_s(self, prompt_bytes: float) -> float:
        """Return a time that prompts of this length will hardly exceed: as if none of the seen times had been fixed; 0 before the first.

        Times that scatter can make the line too flat, or level; far beyond the lengths that were seen it says nothing.
        """
        line = self._line
        return prompt_bytes * line.mean_s / line.mean if line.has_amounts else 0.0
