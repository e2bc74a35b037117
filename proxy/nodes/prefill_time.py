"""How long a node takes until a prompt's first token, fitted to what was seen of it. Pure."""

from typing import Final

MIN_SAMPLES: Final = 8  # before that nothing is predicted
MAX_AGE_S: Final = 300.0  # nor if the last sample is older: a node that was slow gets another chance
MAX_BYTES: Final = 1e9  # no node has more to compute; one that says so is not believed
_KEPT: Final = 0.98  # weight of a sample when the next one comes: about the last 50 count
# Samples that lie closer together than this, in relation to their mean, say nothing about the time of one byte.
_LEAST_SPREAD: Final = 0.1


class PrefillTime:
    """A straight line through the faded samples, by least squares."""

    __slots__ = ("_both", "_bytes", "_fixed_s", "_last_s", "_per_byte_s", "_samples", "_seconds", "_squares", "_weight")

    def __init__(self) -> None:
        self._samples = 0
        self._last_s = 0.0  # monotonic
        self._weight = self._bytes = self._seconds = self._squares = self._both = 0.0
        self._fixed_s = self._per_byte_s = 0.0

    def learn(self, prompt_bytes: float, time_s: float, now_s: float) -> None:
        """Take one sample.

        Args:
            prompt_bytes: of the prompt, less what the node was believed to have, and of all prompts before it.
            time_s: from sending the prompt until its first token.
            now_s: monotonic.
        """
        if not 0 <= prompt_bytes <= MAX_BYTES:
            return
        self._samples += 1
        self._last_s = now_s
        self._weight = self._weight * _KEPT + 1
        self._bytes = self._bytes * _KEPT + prompt_bytes
        self._seconds = self._seconds * _KEPT + time_s
        self._squares = self._squares * _KEPT + prompt_bytes * prompt_bytes
        self._both = self._both * _KEPT + prompt_bytes * time_s
        self._fit()

    def predict_s(self, prompt_bytes: float, now_s: float) -> float | None:
        """Return the time that a prompt will take, with all prompts before it; None while too little was seen."""
        if self._samples < MIN_SAMPLES or now_s - self._last_s > MAX_AGE_S:
            return None
        return self._fixed_s + prompt_bytes * self._per_byte_s

    def limit_s(self, prompt_bytes: float) -> float:
        """Return a time that prompts of this length will hardly exceed: as if none of the seen times had been fixed.

        Times that scatter can make the line too flat, or level; far beyond the lengths that were seen it says nothing.
        """
        return prompt_bytes * self._seconds / self._bytes if self._bytes else float("inf")

    def _fit(self) -> None:
        mean_bytes, mean_s = self._bytes / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - mean_bytes * mean_bytes
        spread = _LEAST_SPREAD * mean_bytes
        slope = 0.0
        if variance > spread * spread:
            slope = max(0.0, (self._both / self._weight - mean_bytes * mean_s) / variance)
        elif mean_bytes:
            slope = mean_s / mean_bytes
        self._per_byte_s = min(slope, mean_s / mean_bytes) if mean_bytes else 0.0  # no node begins before it is asked
        self._fixed_s = mean_s - mean_bytes * self._per_byte_s
