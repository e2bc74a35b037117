"""A line that says how far a stage is; only on a terminal."""

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from baton.loadtest.run.loops import Limits, Loop, Taken

EVERY_S: Final = 0.5


def line(label: str, taken: Taken, limits: Limits, elapsed_s: float) -> str:
    failed = sum(not record.ok for record in taken.records)
    of = f"/{limits.requests}" if limits.requests < 1 << 60 else ""
    until = f"/{limits.seconds:.0f}" if math.isfinite(limits.seconds) else ""
    waiting = f", {taken.in_line} in line" if taken.in_line else ""
    done = f"{len(taken.records)}{of} requests, {taken.in_flight} in flight{waiting}, {failed} failed"
    return f"{label}: {done}, {elapsed_s:.0f}{until} s"


@asynccontextmanager
async def progress(label: str, loop: Loop, limits: Limits) -> AsyncIterator[None]:
    """Show the line on a terminal while a stage runs."""
    if not sys.stderr.isatty():
        yield
        return
    task = asyncio.create_task(_show(label, loop, limits))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


async def _show(label: str, loop: Loop, limits: Limits) -> None:
    began_s = time.perf_counter()
    while True:
        text = line(label, loop.taken, limits, time.perf_counter() - began_s)
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        await asyncio.sleep(EVERY_S)
