"""What runs beside a stage: a line that says how far it is, on a terminal, and what the client itself uses.

The client's own cost is taken so that a slow client is not taken for a slow server.
"""

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from baton.loadtest.measures.percentile import spread
from baton.loadtest.result import ClientCost
from baton.loadtest.run.loops import Limits, Loop, Taken

EVERY_S: Final = 0.5
SAMPLE_S: Final = 0.05


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def line(label: str, taken: Taken, limits: Limits, elapsed_s: float) -> str:
    failed = sum(not record.ok for record in taken.records)
    of = f"/{limits.requests}" if limits.requests < 1 << 60 else ""
    until = f"/{limits.seconds:.0f}" if math.isfinite(limits.seconds) else ""
    waiting = f", {taken.in_line} in line" if taken.in_line else ""
    done = f"{len(taken.records)}{of} requests, {taken.in_flight} in flight{waiting}, {failed} failed"
    return f"{label}: {done}, {elapsed_s:.0f}{until} s"


@asynccontextmanager
async def progress(label: str, loop: Loop, limits: Limits) -> AsyncIterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    async with beside(_show(label, loop, limits)):
        yield
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)


async def _show(label: str, loop: Loop, limits: Limits) -> None:
    began_s = time.perf_counter()
    while True:
        text = line(label, loop.taken, limits, time.perf_counter() - began_s)
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(EVERY_S)


class CostMeter:
    """CPU time of this process, and how late its event loop wakes up, within `measuring`."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self.cost: ClientCost | None = None  # known at the end

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[Self]:
        cpu_s, began_s = time.process_time(), time.perf_counter()
        async with beside(self._sample()):
            yield self
        lags = spread(self._lags_s)
        self.cost = ClientCost(
            cpu_s=time.process_time() - cpu_s,
            wall_s=time.perf_counter() - began_s,
            lag_median_s=lags.median,
            lag_p99_s=lags.p99,
            lag_max_s=lags.most,
        )

    async def _sample(self) -> None:
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(SAMPLE_S)
            self._lags_s.append(max(0.0, time.perf_counter() - before_s - SAMPLE_S))
