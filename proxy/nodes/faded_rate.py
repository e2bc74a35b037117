"""How much comes per second: the seconds of prompts that a node was given, or its tokens; and which share of what came was of one kind. Pure."""

from math import exp, inf
from typing import Final

WINDOW_S: Final = 10.0  # what is older than that counts little
_FEW: Final = 3.0  # say nothing about a share
_MOST_TIME: Final = 0.9  # of a node, that prompts are taken to need
_LULL_S: Final = 30.0  # after that a rate begins again
_LEAST_SEEN_S: Final = 2.0  # of a rate that has just begun


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


class PromptRate:
    """The prompts that a node was given to compute, and of their bytes those that were new to it."""

    __slots__ = ("_asked_s", "_began_s", "_bytes", "_last_s", "_prompts", "_was_computing")

    def __init__(self) -> None:
        self._asked_s, self._was_computing = -inf, False
        self._prompts, self._bytes = FadedRate(), FadedRate()
        self._began_s, self._last_s = 0.0, -inf  # monotonic

    def add(self, new_bytes: int, now_s: float) -> None:
        if now_s - self._last_s > _LULL_S:
            self._prompts, self._bytes, self._began_s = FadedRate(), FadedRate(), now_s
        self._last_s = now_s
        self._prompts.add(1.0, now_s)
        self._bytes.add(new_bytes, now_s)

    def was_computing(self, now_s: float, *, is_computing: bool) -> bool:
        """Return whether the node had a prompt to compute since this was last asked, given whether it has one now."""
        had_one = self._was_computing or is_computing or self._last_s >= self._asked_s
        self._asked_s, self._was_computing = now_s, is_computing
        return had_one

    def prompts_per_s(self, now_s: float) -> float:
        return self._prompts.at(now_s)

    def bytes_per_s(self, now_s: float) -> float:
        return self._bytes.at(now_s)

    def time_share(self, per_byte_s: float, now_s: float) -> float:
        """Return the share of the node's time that they take, without what prompts of one step have in common; at most 0.9, as tokens come at last."""
        return min(_MOST_TIME, self.bytes_per_s(now_s) * per_byte_s)

    def seen_share(self, now_s: float) -> float:
        """Return which share of a steady rate is seen so far: less than 1 in the first half minute, and least where none came for as long."""
        began_s = self._began_s if now_s - self._last_s <= _LULL_S else now_s
        return 1 - exp(-max(_LEAST_SEEN_S, now_s - began_s) / WINDOW_S)


class FadedShare:
    """Of what came, the share that counts; what is older fades."""

    __slots__ = ("_all", "_some")

    def __init__(self) -> None:
        self._all, self._some = FadedRate(), FadedRate()

    def add(self, now_s: float, *, counts: bool) -> None:
        self._all.add(1.0, now_s)
        self._some.add(float(counts), now_s)

    def at(self, now_s: float) -> float | None:
        """Return the share; None if too little came lately."""
        per_s = self._all.at(now_s)
        return self._some.at(now_s) / per_s if per_s * WINDOW_S >= _FEW else None
