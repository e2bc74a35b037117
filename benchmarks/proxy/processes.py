"""Starting processes on one core, and ending them."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from baton.loadtest.errors import RunError

STOP_TIMEOUT_S: Final = 10.0
START_TIMEOUT_S: Final = 60.0


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
    """Start a process; what it says goes to a file, its standard output to us where it is `piped`."""
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if piped else file,
            stderr=file,
            env=dict(environment),
        )


async def first_line(process: asyncio.subprocess.Process) -> str:
    """Return the first line that a process prints."""
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
