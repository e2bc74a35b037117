"""The two ways to load a server, and what runs beside them: a line that says how far a stage is, and what the client itself uses.

Both end, in requests and in time, and can be stopped. Closed: so many users, each sending its next request when the last
one was answered. Open: requests come when they are due, whatever became of the others; with a cap they wait in line on
this side, which is recorded. The client's own cost is taken so that a slow client is not taken for a slow server.
"""

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

from baton.loadtest.client.exchange import Answered, Exchange, Timing
from baton.loadtest.measures.percentile import spread
from baton.loadtest.measures.record import Record
from baton.loadtest.result import ClientCost
from baton.loadtest.traffic.script import Ask, Script, Source

EVERY_S: Final = 0.5
SAMPLE_S: Final = 0.05
UNBOUNDED: Final = 1 << 60  # requests of a stage that only time ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A closed loop: a number of users, each with one request at a time."""

    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A script begins at each of these instants."""

    due_s: Sequence[float]
    cap: int | None = None  # requests in flight at most


Load = Closed | Open


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a stage ends: no request is begun beyond either; those under way are waited for."""

    requests: int
    seconds: float

    def in_time(self, due_s: float) -> bool:
        """Say whether what is due then belongs to the stage; what is due as its time ends does not."""
        return due_s < self.seconds and not math.isclose(due_s, self.seconds)


@dataclass(slots=True)
class Taken:
    """What a stage has given so far."""

    records: list[Record] = field(default_factory=list)
    begun: int = 0  # requests
    scripts: int = 0
    in_line: int = 0  # due, and held back by the cap
    unsent: int = 0  # due, and the stage's end came first: their scripts never began
    duration_s: float = 0.0

    @property
    def in_flight(self) -> int:
        return self.begun - len(self.records)


class Loop:
    """One stage. `taken` can be looked at while it runs."""

    def __init__(self, exchange: Exchange, source: Source, limits: Limits, first_script: int = 0) -> None:
        """Begin with script `first_script`, so that no stage repeats the prompts of another."""
        self.taken = Taken()
        self._exchange = exchange
        self._source = source
        self._limits = limits
        self._first_script = first_script
        self.began_s = 0.0  # of `perf_counter`
        self._cap: asyncio.Semaphore | None = None

    async def run(self, load: Load, stop: asyncio.Event) -> Taken:
        """Load the server until a limit is reached or `stop` is set; then requests in flight are given up."""
        self.began_s = time.perf_counter()
        stopping = asyncio.create_task(stop.wait())
        running = asyncio.create_task(self._closed(load) if isinstance(load, Closed) else self._open(load))
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.taken.duration_s = time.perf_counter() - self.began_s
            stopping.cancel()
            running.cancel()
            await asyncio.wait({running, stopping})
        if not running.cancelled():
            running.result()  # a bug of ours shows here
        return self.taken

    async def _closed(self, load: Closed) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(load.concurrency, self._limits.requests)):
                group.create_task(self._user())

    async def _user(self) -> None:
        while self._may_begin():
            script, ask, body = self._prepare()
            await self._play(script, ask, body, Timing(self.began_s))

    async def _open(self, load: Open) -> None:
        self._cap = asyncio.Semaphore(load.cap) if load.cap else None
        async with asyncio.TaskGroup() as group:
            for due_s in load.due_s:
                if not self._limits.in_time(due_s) or self.taken.begun >= self._limits.requests:
                    break
                script, ask, body = self._prepare()  # before the request is due
                await asyncio.sleep(max(0.0, self.began_s + due_s - time.perf_counter()))
                group.create_task(self._arrival(script, ask, body, due_s))

    async def _arrival(self, script: Script, ask: Ask, body: bytes, due_s: float) -> None:
        arrived_s = time.perf_counter()
        if self._cap is None:
            await self._play(script, ask, body, Timing(self.began_s, due_s))
            return
        self.taken.in_line += 1
        async with self._cap:
            self.taken.in_line -= 1
            await self._play(script, ask, body, Timing(self.began_s, due_s, time.perf_counter() - arrived_s))

    def _prepare(self) -> tuple[Script, Ask, bytes]:
        script = self._source.script(self._first_script + self.taken.scripts)
        self.taken.scripts += 1
        ask = next(script)
        return script, ask, self._exchange.form.body(ask)

    async def _play(self, script: Script, ask: Ask, body: bytes, timing: Timing) -> None:
        """Send a script's requests one after the other; a failed one ends it."""
        while self._may_begin():
            index = self.taken.begun
            self.taken.begun += 1
            answered = await self._exchange.send(index, ask, body, timing)
            self.taken.records.append(answered.record)
            if not answered.record.ok:
                return
            try:
                ask = script.send(answered.text)
            except StopIteration:
                return
            body, timing = self._exchange.form.body(ask), Timing(self.began_s)
        if timing.due_s is not None:  # as only a script's first request has
            self.taken.unsent += 1

    def _may_begin(self) -> bool:
        in_time = time.perf_counter() - self.began_s <= self._limits.seconds
        return in_time and self.taken.begun < self._limits.requests


async def warm_up(exchange: Exchange, source: Source, requests: int, at_once: int) -> list[Record]:
    """Send requests that do not count: first turns only, with prompts that do not come again."""
    asks = ((-number, next(source.script(-number))) for number in range(1, requests + 1))
    return [answer.record for answer in (await ask_each(exchange, asks, at_once)).values()]


async def ask_each(exchange: Exchange, asks: Iterator[tuple[int, Ask]], at_once: int) -> dict[int, Answered]:
    """Send numbered requests, so many at once; return the answers by number."""
    began_s, answers = time.perf_counter(), dict[int, Answered]()

    async def user() -> None:
        for index, ask in asks:
            answers[index] = await exchange.send(index, ask, exchange.form.body(ask), Timing(began_s))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(user())
    return answers


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
    of = f"/{limits.requests}" if limits.requests < UNBOUNDED else ""
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
