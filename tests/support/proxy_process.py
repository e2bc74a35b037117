"""`python -m baton.proxy` as a process, in front of fake nodes."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import httpx

from tests.support.cluster import ADMIN_TOKEN, until_true
from tests.support.fake_fabric import Fabric
from tests.support.fake_vllm import SECRET, FakeVllm
from tests.support.ports import free_port

PATIENCE_S: Final = 60.0
STOP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProxyProcess:
    process: asyncio.subprocess.Process
    port: int
    prefill: list[FakeVllm]
    decode: list[FakeVllm]
    fabric: Fabric
    log: Path  # its standard error

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def spawn(
    *arguments: str, stderr: int | IO[bytes] = asyncio.subprocess.PIPE, max_files: int | None = None
) -> asyncio.subprocess.Process:
    """Run `python -m baton.proxy`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    environment["BATON_SERVE_STOP_TIMEOUT_S"] = "4"  # of which streams may take 2 s to end
    # A new worker takes requests once it has probed all nodes, or then.
    environment["BATON_PROXY_PROBE_TIMEOUT_S"] = "20"
    environment["BATON_PROXY_PLACEMENT"] = "pairs"  # by cost, a fake node that a loaded machine slows would be avoided
    command = [sys.executable, "-m", "baton.proxy", *arguments]
    if max_files is not None:
        command = ["sh", "-c", f'ulimit -n {max_files}; exec "$@"', "sh", *command]
    return await asyncio.create_subprocess_exec(*command, stderr=stderr, env=environment)


def write_secret(folder: Path) -> str:
    """Write the cluster's secret into a file; return its path."""
    path = folder / "secret"
    path.write_bytes(SECRET.values[0])
    return str(path)


async def is_ready(port: int, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether every node of the proxy is in use."""
    try:
        async with httpx.AsyncClient(verify=tls or False) as http:
            nodes = (await http.get(f"{'https' if tls else 'http'}://127.0.0.1:{port}/ready")).json()["nodes"]
    except httpx.HTTPError:
        return False
    return all(node["state"] == "ready" for node in nodes)


@asynccontextmanager
async def proxy_process(
    folder: Path,
    *arguments: str,
    prefill: int = 1,
    decode: int = 1,
    max_files: int | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[ProxyProcess]:
    """Run a proxy process in front of fake nodes until the block ends; its files are in `folder`.

    With `tls`, the settings of a client, it is asked over TLS whether it is ready.
    """
    fabric, port, log, token = Fabric(), free_port(), folder / "log", folder / "admin"
    makers = [FakeVllm("prefill", fabric) for _ in range(prefill)]
    takers = [FakeVllm("decode", fabric) for _ in range(decode)]
    for node in (*makers, *takers):
        await node.start()
    token.write_text(ADMIN_TOKEN)
    with log.open("wb") as stderr:
        process = await spawn(
            *("--port", str(port), "--secret-file", write_secret(folder), "--admin-token-file", str(token)),
            *("--prefill", *(node.url for node in makers), "--decode", *(node.url for node in takers), *arguments),
            stderr=stderr,
            max_files=max_files,
        )
    try:
        await until_true(lambda: is_ready(port, tls), timeout_s=PATIENCE_S)
        yield ProxyProcess(process, port, makers, takers, fabric, log)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
        await process.wait()
        await asyncio.gather(*(node.stop() for node in (*makers, *takers)))
