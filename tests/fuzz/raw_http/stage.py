"""A proxy and two mock engines as processes of their own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from baton.contracts.secret import generate_secret
from tests.support.ports import free_port
from tests.support.proxy_process import is_ready, spawn

START_S = 60.0


@dataclass(slots=True)
class Stage:
    port: int
    process: asyncio.subprocess.Process
    log: list[str] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether the proxy's process is there."""
        return self.process.returncode is None

    def descriptors(self) -> int:
        """How many files and sockets the proxy has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * 4096

    def faults(self) -> list[str]:
        """What the proxy's log tells of faults of its own, each with where it came from; equal ones once."""
        found: dict[str, None] = {}
        for at, line in enumerate(self.log):
            if "Traceback" in line or "ERROR" in line:
                rest = self.log[at + 1 :]
                ends = next((index for index, text in enumerate(rest) if not text.startswith(" ")), len(rest) - 1)
                found[" | ".join(text.strip() for text in (line, *rest[max(0, ends - 4) : ends + 1]))] = None
        return list(found)


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Start everything; stop it at the end."""
    secret = folder / "secret"
    secret.write_text(generate_secret())
    mocks = [await _mock(role, secret) for role in ("prefill", "decode")]
    port = free_port()
    arguments = ["--port", str(port), "--secret-file", str(secret), "--prefill", mocks[0][1], "--decode", mocks[1][1]]
    proxy = await spawn(*arguments)
    made = Stage(port, proxy)
    reading = asyncio.create_task(_read(proxy, made.log))
    try:
        async with asyncio.timeout(START_S):
            while not await is_ready(port):
                assert made.alive, "\n".join(made.log)
                await asyncio.sleep(0.1)
        yield made
    finally:
        for process in (proxy, *(mock for mock, _ in mocks)):
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), 15)
        await reading


async def _mock(role: str, secret: Path) -> tuple[asyncio.subprocess.Process, str]:
    command = (sys.executable, "-m", "baton.loadtest.mock_engine", "--role", role, "--secret-file", str(secret))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    return process, (await asyncio.wait_for(process.stdout.readline(), START_S)).decode().strip()


async def _read(process: asyncio.subprocess.Process, log: list[str]) -> None:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        log.append(line.decode(errors="replace").rstrip())
