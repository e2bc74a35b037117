"""A histogram that counts where things happen and is read in another process.

The engine's processes observe; the node's API process turns snapshots into Prometheus' families
(`node/http/metrics.py`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SHARE: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


class Histogram:
    """Counts of values by upper bound, and their sum. One thread observes, any thread reads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise; a value counts at the first bound that is not below it, or beyond the last."""
        self._bounds = tuple(bounds)
        self._state = ((0,) * (len(self._bounds) + 1), 0.0)  # replaced as one, so that no reader sees half of it

    def observe(self, value: float | None) -> None:
        """Count a value; None is none. Below 0 counts as 0, since a sum that falls looks like a restart."""
        if value is None:
            return
        value = max(value, 0.0)
        counts, total = self._state
        at = bisect_left(self._bounds, value)
        self._state = ((*counts[:at], counts[at] + 1, *counts[at + 1 :]), total + value)

    def snapshot(self) -> dict[str, Any]:
        """Return plain data: bounds, counts between them (one more, for what lies beyond), sum."""
        counts, total = self._state
        return {"bounds": list(self._bounds), "counts": list(counts), "sum": total}
