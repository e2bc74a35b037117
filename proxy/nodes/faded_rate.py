"""How much comes per second: the seconds of prompts that a node was given (the share of its time that they take), or its tokens. Pure."""

from math import exp
from typing import Final

WINDOW_S: Final = 10.0  # what is older than that counts little


class FadedRate:
    """Sums amounts; older ones fade."""

    __slots__ = ("_at_s", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at_s = 0.0  # monotonic

    def add(self, amount: float, now_s: float) -> None:
        self._sum = self._faded(now_s) + amount
        self._at_s = now_s

    def at(self, now_s: float, *, more: float = 0.0) -> float:
        """Return the amount per second, with so much more; of prompts it exceeds 1 where they wait for each other."""
        return (self._faded(now_s) + more) / WINDOW_S

    def _faded(self, now_s: float) -> float:
        return self._sum * exp((self._at_s - now_s) / WINDOW_S)
