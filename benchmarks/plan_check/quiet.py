"""Measurements that the host of this machine has disturbed are made again."""

import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from benchmarks.usage import OtherCpu

T = TypeVar("T")


class Quiet:
    """Watches what the host takes."""

    def __init__(self, meter: OtherCpu, max_stolen_cores: float, tries: int) -> None:
        """Of each measurement `tries` are made at most; the last one counts, however it was."""
        self._meter = meter
        self._max_stolen_cores = max_stolen_cores
        self._tries = tries
        self.repeated = 0
        self.stolen_cores = 0.0  # most, of what counts

    async def measure(self, once: Callable[[], Awaitable[T]], forget: Callable[[], None] = lambda: None) -> T:
        """Measure until nothing disturbed it.

        Args:
            once: measures.
            forget: makes what the last call of `once` left behind undone.
        """
        for left in reversed(range(self._tries)):
            self._meter.restart()
            found = await once()
            stolen = self._meter.stolen_cores()
            if not left or stolen <= self._max_stolen_cores:
                self.stolen_cores = max(self.stolen_cores, stolen)
                return found
            forget()
            self.repeated += 1
            print(f"the host took {stolen:.2f} cores: once more", file=sys.stderr)
        raise AssertionError("unreachable: `tries` is 1 or more")
