"""The share of a node's time that prompts take which were given to it. Pure."""

from math import exp
from typing import Final

WINDOW_S: Final = 10.0  # what is older than that counts little


class PromptShare:
    """Sums the times of prompts; older ones fade."""

    __slots__ = ("_at_s", "_sum_s")

    def __init__(self) -> None:
        self._sum_s = 0.0
        self._at_s = 0.0  # monotonic

    def add(self, time_s: float, now_s: float) -> None:
        self._sum_s = self._faded_s(now_s) + time_s
        self._at_s = now_s

    def at(self, now_s: float, *, more_s: float = 0.0) -> float:
        """Return the share, with a prompt of so many seconds more; it exceeds 1 where prompts wait for each other."""
        return (self._faded_s(now_s) + more_s) / WINDOW_S

    def _faded_s(self, now_s: float) -> float:
        return self._sum_s * exp((self._at_s - now_s) / WINDOW_S)
