"""The supervisor alone, with workers that do nothing but what a test needs."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.cluster import until_true
from tests.support.processes import alive

PATIENCE_S = 60.0
SCRIPT = """
import errno, itertools, logging, os, signal, socket, sys, time
from pathlib import Path
from baton.proxy.workers.listen import listen_on
from baton.proxy.workers.supervisor import Supervisor

def serve(slot, sockets):
    os.write(1, f"{os.getpid()} {slot.number} {slot.starts}\\n".encode())  # in one piece, whatever others write
    WORK
    while True:
        slot.beat()
        time.sleep(0.05)

BEFORE
sockets = [listen_on("127.0.0.1", 0, 1)[0] for _ in range(3)]
Supervisor(serve, sockets, Path("/nowhere"), stop_timeout_s=1.0, hang_s=3.0).run()
print("ended", flush=True)
"""
HANGS_OR_FAILS = """
    if slot.starts == 1 and slot.number == 1: raise ValueError
    if slot.starts == 1 and slot.number == 2: raise SystemExit(3)
    while slot.starts == 1: time.sleep(1)
"""
# The third pair is the second worker's.
NO_FILES = """
pair, turn = socket.socketpair, itertools.count(1)
def socketpair():
    if next(turn) == 3:
        raise OSError(errno.ENFILE, "Too many open files in system")
    return pair()
socket.socketpair = socketpair
"""


@asynccontextmanager
async def supervisor(work: str, before: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
    """Run three workers that do `work` first."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT.replace("WORK", work).replace("BEFORE", before)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def starts(process: asyncio.subprocess.Process, count: int) -> dict[tuple[int, int], int]:
    """Read of so many starts, in any order of the workers; return their pids by number of worker and of start."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        lines = [list(map(int, (await process.stdout.readline()).split())) for _ in range(count)]
    return {(number, start): pid for pid, number, start in lines}


async def test_a_worker_that_hangs_or_fails_is_replaced() -> None:
    """One that does not beat any more is killed; those that are well go on, until the supervisor is killed."""
    async with supervisor(HANGS_OR_FAILS) as process:
        pids = await starts(process, 6)
        well = [pids[number, 2] for number in range(3)]
        were_alive = all(map(alive, well))
        process.kill()
        await until_true(lambda: not any(map(alive, well)), timeout_s=PATIENCE_S)

    assert were_alive
    assert sorted(pids) == [(number, start) for number in range(3) for start in (1, 2)]


async def test_a_worker_that_cannot_be_started_now_is_started_later_and_one_that_does_not_stop_is_killed() -> None:
    """Too many open files in the system: the other workers are left alone. The end is a second after its time, whatever they do with SIGTERM."""
    async with supervisor("signal.signal(signal.SIGTERM, signal.SIG_IGN)", NO_FILES) as process:
        found = await starts(process, 3)
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        last = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        status = await asyncio.wait_for(process.wait(), PATIENCE_S)

    assert sorted(found) == [(0, 1), (1, 2), (2, 1)]
    assert (last, status) == (b"ended\n", 0)
