"""The supervisor alone, with workers that do nothing but what a test needs."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

PATIENCE_S = 60.0
SCRIPT = """
import logging, os, signal, sys, time
from pathlib import Path
from baton.proxy.workers.listen import listen_on
from baton.proxy.workers.supervisor import Supervisor

def serve(slot, sockets):
    os.write(1, f"start {slot.number} {slot.starts}\\n".encode())  # in one piece, whatever others write
    WORK
    while True:
        slot.beat()
        time.sleep(0.05)

sockets = listen_on("127.0.0.1", 0, 1) + listen_on("127.0.0.1", 0, 1)
Supervisor(serve, sockets, Path("/nowhere"), stop_timeout_s=1.0, hang_s=3.0).run()
print("ended", flush=True)
"""


# The third pair is the second worker's.
FAILING = """
import errno, itertools, socket
pair, turn = socket.socketpair, itertools.count(1)
def socketpair():
    if next(turn) == 3:
        raise OSError(errno.ENFILE, "Too many open files in system")
    return pair()
socket.socketpair = socketpair
"""


@asynccontextmanager
async def supervisor(work: str, script: str = SCRIPT) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run two workers that do `work` first."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script.replace("WORK", work)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def lines(process: asyncio.subprocess.Process, count: int) -> list[str]:
    """Read so many lines, in any order of the workers."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return sorted([(await process.stdout.readline()).decode().strip() for _ in range(count)])


async def test_a_worker_that_hangs_is_replaced() -> None:
    """One that does not beat any more is killed; the other one, which is well, is left alone."""
    async with supervisor("while slot.number == 0 and slot.starts == 1: time.sleep(1)") as process:
        found = await lines(process, 3)

    assert found == ["start 0 1", "start 0 2", "start 1 1"]


async def test_a_worker_that_raises_is_replaced() -> None:
    work = "if slot.starts == 1: raise ValueError if slot.number else SystemExit(3)"
    async with supervisor(work) as process:
        found = await lines(process, 4)

    assert found == ["start 0 1", "start 0 2", "start 1 1", "start 1 2"]


async def test_a_worker_that_does_not_stop_is_killed_and_the_supervisor_ends() -> None:
    """A second after its time, whatever it does with SIGTERM."""
    async with supervisor("signal.signal(signal.SIGTERM, signal.SIG_IGN)") as process:
        await lines(process, 2)
        process.send_signal(signal.SIGTERM)
        (last,) = await lines(process, 1)
        status = await asyncio.wait_for(process.wait(), PATIENCE_S)

    assert (last, status) == ("ended", 0)


async def test_a_worker_that_cannot_be_started_now_is_started_later() -> None:
    """Too many open files in the system: the other worker is left alone."""
    script = SCRIPT.replace("sockets = ", FAILING + "sockets = ")
    async with supervisor("pass", script) as process:
        found = await lines(process, 2)
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), PATIENCE_S)

    assert found == ["start 0 1", "start 1 2"]
    assert status == 0
