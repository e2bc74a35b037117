"""What a byte of prompt costs a node that has it in its prefix cache, compared with one that it computes. Pure.

Attention of the new tokens reads the cached ones: 0.2 to 0.3 on a CPU, where a conversation's turn took twice as long behind 1,500 cached tokens.
"""

from typing import Final, NamedTuple

from baton.proxy.nodes.faded_line import KEPT, MIN_SAMPLES

# What is cached has to vary by that share of the prompts' mean length, apart from what varies with the computed part.
_LEAST_SPREAD: Final = 0.1


class Prompt(NamedTuple):
    """Bytes of a prompt, as the node is believed to have it."""

    computed: float
    cached: float


class CachedCost:
    """A plane through the times of prompts over their computed and their cached bytes, by least squares with fading weights."""

    __slots__ = ("_bytes", "_count", "_sums", "cost")

    def __init__(self) -> None:
        self.cost = 0.0  # from 0 to 1; 0 while too little is known
        self._count = 0  # prompts of which something was cached
        self._bytes = 0.0  # faded mean of the prompts' lengths
        self._sums = (0.0,) * 9

    def add(self, prompt: Prompt, time_s: float) -> None:
        """Take the time of a prompt that no other one waited before; prompts weigh less the longer they are, as in `PrefillTime`."""
        computed, cached = prompt
        self._count += cached > 0
        length = computed + cached
        self._bytes = self._bytes * KEPT + length * (1 - KEPT) if self._bytes else length
        weight = (1 + length + self._bytes / 10) ** -2
        products = (
            1.0, computed, cached, time_s,
            computed * computed, computed * cached, cached * cached, computed * time_s, cached * time_s,
        )  # fmt: skip
        self._sums = tuple(kept * KEPT + weight * product for kept, product in zip(self._sums, products, strict=True))
        if self._count >= MIN_SAMPLES:
            self.cost = self._fit()

    def _fit(self) -> float:
        total, *sums = self._sums
        x, z, t, xx, xz, zz, xt, zt = (each / total for each in sums)
        xx, xz, zz, xt, zt = xx - x * x, xz - x * z, zz - z * z, xt - x * t, zt - z * t
        least = (_LEAST_SPREAD * (x + z)) ** 2
        if xx <= least or zz <= least:
            return self.cost
        determinant = xx * zz - xz * xz
        if determinant <= least * least:
            return self.cost
        computed_s, cached_s = xt * zz - zt * xz, zt * xx - xt * xz
        return min(1.0, max(0.0, cached_s / computed_s)) if computed_s > 0 else self.cost
