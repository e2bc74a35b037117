"""What a byte of prompt costs a node that has it in its prefix cache, compared with one that it computes. Pure.

Attention of the new tokens reads the cached ones: on a CPU, a cached token took 0.16 to 0.31 of a computed one's time.
"""

from typing import Final, NamedTuple

from baton.proxy.nodes.faded_line import KEPT, MIN_SAMPLES

# Variance of what is cached that is added to that seen, in squares of the mean prompt: few prompts, and alike, say
# little.
_PRIOR: Final = 0.05
# By what is computed without what is cached, of what neither explains: with less its part of the time is not known.
_LEAST_EXPLAINED: Final = 0.25


class PromptParts(NamedTuple):
    """Bytes of a prompt, as the node was believed to have it when it was sent."""

    computed: int
    cached: int


class CachedCost:
    """A plane through the times of prompts over their computed and their cached bytes, by least squares with fading weights."""

    __slots__ = ("_count", "_mean_bytes", "_sums", "cost")

    def __init__(self) -> None:
        self.cost = 0.0  # from 0 to 1; 0 while too little is known
        self._count = 0  # prompts of which something was cached
        self._mean_bytes = 0.0  # faded
        self._sums: tuple[float, ...] = (0.0,) * 10

    def add(self, parts: PromptParts, time_s: float) -> None:
        """Take the time of a prompt that waited for little, by its bytes; it weighs less the longer it is, as in `PrefillTime`."""
        computed, cached = parts
        self._count += cached > 0
        length = computed + cached
        self._mean_bytes = self._mean_bytes * KEPT + length * (1 - KEPT) if self._mean_bytes else length
        weight = (1 + length + self._mean_bytes / 10) ** -2
        squares = computed * computed, computed * cached, cached * cached
        products = (1.0, computed, cached, time_s, *squares, computed * time_s, cached * time_s, time_s * time_s)
        self._sums = tuple(kept * KEPT + weight * product for kept, product in zip(self._sums, products, strict=True))
        if self._count >= MIN_SAMPLES:
            self.cost = self._fit()

    def _fit(self) -> float:
        total, *sums = self._sums
        x, z, t, xx, xz, zz, xt, zt, tt = (each / total for each in sums)
        prior = _PRIOR * (x + z) ** 2
        xx, xz, zz, xt, zt, tt = xx - x * x, xz - x * z, zz - z * z + prior, xt - x * t, zt - z * t, tt - t * t
        computed_s, cached_s = xt * zz - zt * xz, zt * xx - xt * xz  # of a byte, times the determinant
        determinant = xx * zz - xz * xz
        unexplained = tt * determinant - computed_s * xt - cached_s * zt
        if computed_s <= 0 or computed_s * computed_s < _LEAST_EXPLAINED * unexplained * zz:
            return self.cost
        return min(1.0, max(0.0, cached_s / computed_s))
