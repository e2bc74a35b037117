"""What a session needs before it can measure: pairs of mocks, and subjects in front of them that hand over."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from baton.contracts.secret import generate_secret
from baton.loadtest.client.http import WireError
from baton.loadtest.errors import RunError
from baton.loadtest.mock_engine.settings import Counts
from benchmarks.harness import free_port
from benchmarks.proxy.load import SHORT, Load, read_counts
from benchmarks.proxy.subjects import Place, Subject

STOP_TIMEOUT_S: Final = 10.0
START_TIMEOUT_S: Final = 60.0
_LENGTH: Final = b"\r\ncontent-length:"
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
SETTLE_S: Final = 5.0  # how long a leg may outlast its request
Dialect = Literal["baton", "vllm"]


@asynccontextmanager
async def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str], *, piped: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if piped else file,
            stderr=file,
            env=dict(environment),
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()


async def first_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)).decode().strip()
    if not line:
        raise RunError(f"a process ended at its start with status {await process.wait()}")
    return line


class Collector:
    """Takes traces over HTTP, and keeps nothing but their count."""

    def __init__(self) -> None:
        self.url = ""
        self.batches = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(_LENGTH)[2].partition(b"\r\n")[0]))
                self.batches += 1
                writer.write(_ANSWER)
        writer.close()


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is done in a round."""

    rounds: int = 5
    short_requests: int = 2000
    at_once: int = 64
    single_requests: int = 60
    streams: int = 128
    starts: int = 4  # so often do so many streams start together
    tokens: int = 128
    itl_ms: float = 20.0
    chunk_bytes: int = 256
    start_timeout_s: float = 60.0  # of a proxy, until it hands over

    @property
    def further_chunks(self) -> int:
        """How many chunks the long streams have beyond those of as many short ones."""
        return self.streams * (self.tokens - SHORT)


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode mock."""

    prefill_url: str
    decode_url: str

    async def counts(self) -> tuple[Counts, Counts]:
        return await read_counts(self.prefill_url), await read_counts(self.decode_url)

    async def settled(self) -> tuple[Counts, Counts]:
        async with asyncio.timeout(SETTLE_S):
            while True:
                counts = await self.counts()
                if all(one.requests == one.completed + one.refused + one.cancelled for one in counts):
                    return counts
                await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Running:
    """A subject that runs."""

    subject: Subject
    pid: int
    load: Load
    mocks: Pair


class Stage:
    """Starts what a session needs: the load, which is this process, and the mocks on one core, proxies on another."""

    dialects: Final[tuple[Dialect, ...]] = ("baton", "vllm")

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        cores = sorted(os.sched_getaffinity(0))
        self._load_core, self._proxy_core = cores[0], cores[-1]  # the same one where there is but one
        os.sched_setaffinity(0, {self._load_core})
        self._secret_file = folder / "secret"
        self._secret_file.write_text(generate_secret())
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}

    @asynccontextmanager
    async def mocks(self, dialect: Dialect) -> AsyncIterator[Pair]:
        flags = ["--secret-file", str(self._secret_file)] if dialect == "baton" else []
        itl = str(self._plan.itl_ms)
        flags += ["--itl-ms", itl, "--tick-ms", itl, "--chunk-bytes", str(self._plan.chunk_bytes)]
        async with AsyncExitStack() as stack:
            urls = []
            for role in ("prefill", "decode"):
                command = [sys.executable, "-m", "baton.loadtest.mock_engine", "--role", role, *flags]
                mock = running(command, self._folder / "mocks.log", self._environment, piped=True)
                urls.append(await first_line(await stack.enter_async_context(mock)))
            yield Pair(*urls)

    @asynccontextmanager
    async def start(self, subject: Subject, pairs: Mapping[Dialect, Pair], traces: Collector) -> AsyncIterator[Running]:
        mocks = pairs[subject.dialect]
        place = Place(
            port=free_port(),
            spare_port=free_port(),
            prefill_url=mocks.prefill_url,
            decode_url=mocks.decode_url,
            secret_file=self._secret_file,
            collector_url=traces.url,
        )
        async with AsyncExitStack() as stack:
            proxy = running(subject.command(place), self._folder / f"{subject.name}.log", self._environment)
            os.sched_setaffinity(0, {self._proxy_core})  # which a child inherits before it has any thread
            try:
                process = await stack.enter_async_context(proxy)
            finally:
                os.sched_setaffinity(0, {self._load_core})
            load = Load(f"http://127.0.0.1:{place.port}", subject.body)
            stack.callback(load.close)
            one = Running(subject, process.pid, load, mocks)
            await _wait_until_ready(one, process, self._plan.start_timeout_s)
            await load.short(4 * self._plan.at_once, self._plan.at_once)
            await load.together(self._plan.streams, SHORT)
            yield one


async def _wait_until_ready(one: Running, process: asyncio.subprocess.Process, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    problem = "it never handed over"
    while time.monotonic() < deadline_s and process.returncode is None:
        before = await one.mocks.settled()
        try:
            await one.load.short(1, 1)
            await expect(one.mocks, before, 1, one.subject.name)
        except (OSError, WireError, RunError) as exc:
            problem = str(exc)
        else:
            return
        await asyncio.sleep(0.1)
    raise RunError(f"{one.subject.name} does not serve: {problem}")


async def expect(mocks: Pair, before: tuple[Counts, Counts], requests: int, name: str) -> None:
    """Wait until both mocks have completed so many hand-overs. Raises `RunError`: they have done anything else."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        grown = [_growth(old, new) for old, new in zip(before, await mocks.counts(), strict=True)]
        if all(done == (requests, requests, requests, 0) for done in grown):
            return
        if time.monotonic() > deadline_s or any(done[0] > requests or done[3] for done in grown):
            raise RunError(f"{name}: {requests} requests were sent, the mocks counted {grown} (prefill, decode)")
        await asyncio.sleep(0.02)


def _growth(old: Counts, new: Counts) -> tuple[int, int, int, int]:
    wrong = sum(getattr(new, name) - getattr(old, name) for name in ("alone", "refused", "faulted", "cancelled"))
    return (new.requests - old.requests, new.handed_over - old.handed_over, new.completed - old.completed, wrong)
