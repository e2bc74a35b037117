"""What the client itself used, so that a slow client is not taken for a slow server."""

import asyncio
import contextlib
import time
from typing import Final, Self

from baton.loadtest.measures.percentile import spread
from baton.loadtest.result import ClientCost

SAMPLE_S: Final = 0.05


class CostMeter:
    """Measures between entering and leaving it: CPU time of this process, and how late its event loop wakes up."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._cpu_s = self._began_s = 0.0
        self.cost: ClientCost | None = None  # known at the end

    async def __aenter__(self) -> Self:
        self._cpu_s, self._began_s = time.process_time(), time.perf_counter()
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        lags = spread(self._lags_s)
        self.cost = ClientCost(
            cpu_s=time.process_time() - self._cpu_s,
            wall_s=time.perf_counter() - self._began_s,
            lag_median_s=lags.median,
            lag_p99_s=lags.p99,
            lag_max_s=lags.most,
        )

    async def _sample(self) -> None:
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(SAMPLE_S)
            self._lags_s.append(max(0.0, time.perf_counter() - before_s - SAMPLE_S))
