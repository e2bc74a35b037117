"""Starting processes on one core, and ending them; and where traces go."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from baton.loadtest.errors import RunError

STOP_TIMEOUT_S: Final = 10.0
START_TIMEOUT_S: Final = 60.0
_LENGTH: Final = b"\r\ncontent-length:"
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"


class Cores:
    """Which core the load and the mocks have, and which one the proxies; the same one where there is but one."""

    def __init__(self) -> None:
        self._all = sorted(os.sched_getaffinity(0))
        self.load, self.proxy = self._all[0], self._all[-1]

    @contextmanager
    def on(self, core: int) -> Iterator[None]:
        """Start what is started in the block on one core: a child inherits it before it has any thread."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


async def spawn(
    command: Sequence[str], log: Path, environment: Mapping[str, str], *, piped: bool = False
) -> asyncio.subprocess.Process:
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if piped else file,
            stderr=file,
            env=dict(environment),
        )


async def first_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)).decode().strip()
    if not line:
        raise RunError(f"a process ended at its start with status {await process.wait()}")
    return line


async def stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


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
