"""How long a node takes until a prompt's first token, fitted to what was seen of it. Pure."""

from typing import Final

MIN_SAMPLES: Final = 8  # before that nothing is predicted
_KEPT: Final = 0.98  # weight of a sample when the next one comes: about the last 50 count
# Samples that lie closer together than this, in relation to their mean, say nothing about the time of one byte.
_LEAST_SPREAD: Final = 0.1


class PrefillTime:
    """A straight line through the faded samples: `fixed_s + prompt_bytes * per_byte_s`, by least squares."""

    __slots__ = ("_both", "_bytes", "_samples", "_seconds", "_squares", "_weight", "fixed_s", "per_byte_s")

    def __init__(self) -> None:
        self._samples = 0
        self._weight = self._bytes = self._seconds = self._squares = self._both = 0.0
        self.fixed_s = 0.0
        self.per_byte_s = 0.0

    def learn(self, prompt_bytes: float, time_s: float) -> None:
        """Take one sample.

        Args:
            prompt_bytes: of the prompt, less what the node was believed to have, and of all prompts before it.
            time_s: from sending the prompt until its first token.
        """
        self._samples += 1
        self._weight = self._weight * _KEPT + 1
        self._bytes = self._bytes * _KEPT + prompt_bytes
        self._seconds = self._seconds * _KEPT + time_s
        self._squares = self._squares * _KEPT + prompt_bytes * prompt_bytes
        self._both = self._both * _KEPT + prompt_bytes * time_s
        self._fit()

    def predict_s(self, prompt_bytes: float) -> float | None:
        """Return the time that a prompt will take, with all prompts before it; None while too little was seen."""
        return self.fixed_s + prompt_bytes * self.per_byte_s if self._samples >= MIN_SAMPLES else None

    def _fit(self) -> None:
        mean_bytes, mean_s = self._bytes / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - mean_bytes * mean_bytes
        slope = 0.0
        if variance > (_LEAST_SPREAD * mean_bytes) ** 2:
            slope = max(0.0, (self._both / self._weight - mean_bytes * mean_s) / variance)
        elif mean_bytes:
            slope = mean_s / mean_bytes
        self.per_byte_s = min(slope, mean_s / mean_bytes) if mean_bytes else 0.0  # no node begins before it is asked
        self.fixed_s = mean_s - mean_bytes * self.per_byte_s
