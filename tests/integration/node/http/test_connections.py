"""A node whose port is flooded with connections that want nothing: what the proxy asks is answered all the while."""

import asyncio
import json
import random
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton.contracts.kv_transfer import FIELD, TransferParams, sign
from baton.contracts.secret import ClusterSecret

LIMIT = 600
FLOOD = 700
SECRET = ClusterSecret(b"the secret of this test cluster")
# Everything of vLLM's server but the engine.
SERVE = """
import resource, socket, sys
from pathlib import Path
from types import SimpleNamespace

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
sys.modules["vllm"] = SimpleNamespace(envs=None)
import uvicorn, uvloop
from fastapi import FastAPI
from baton.contracts.secret import ClusterSecret
from baton.node import middleware
from baton.node.middleware import GateSettings, NodeMiddleware

middleware.tap_outputs = lambda: None
app = FastAPI()
app.post("/v1/completions")(lambda: {})
settings = GateSettings(role="decode", roles=frozenset({"decode"}), model="m", secret=ClusterSecret(sys.argv[2].encode()),
                        runtime_dir=Path(sys.argv[3]), drain_timeout_s=1.0)
app.add_middleware(NodeMiddleware, settings=settings)
listening = socket.socket()
listening.bind(("127.0.0.1", 0))
config = uvicorn.Config(app, log_level="error", timeout_keep_alive=5)
config.load()
server = app.state.server = uvicorn.Server(config)
app.state.engine_client = SimpleNamespace(is_running=True)
print(listening.getsockname()[1], flush=True)
uvloop.run(server.serve(sockets=[listening]))
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where a node listens that may have `LIMIT` open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * FLOOD), hard))
    command = [sys.executable, "-c", SERVE, str(LIMIT), SECRET.values[0].decode(), str(tmp_path_factory.mktemp("node"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).resolve().parents[4]) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def ask(port: int) -> int:
    """Send what the proxy sends, on a connection of its own; return the status."""
    params = sign(TransferParams(transfer_id="a" * 32, role="decode", peer=""), SECRET)
    body = json.dumps({"prompt": "x", FIELD: params}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        got = await reader.read()
        writer.close()
    return int(got.split(b" ", 2)[1])


@asynccontextmanager
async def flood(port: int, sent: bytes) -> AsyncIterator[None]:
    """Hold `FLOOD` connections that have sent this much; one that is closed is made again."""
    loop = asyncio.get_running_loop()
    full = asyncio.Event()
    held = 0

    async def hold() -> None:
        nonlocal held
        while True:
            with socket.socket() as sock:
                sock.setblocking(False)  # its only argument
                try:
                    await loop.sock_connect(sock, ("127.0.0.1", port))
                    await loop.sock_sendall(sock, sent)
                    held += 1
                    if held == FLOOD:
                        full.set()
                    await loop.sock_recv(sock, 1)
                except OSError:
                    pass
            await asyncio.sleep(random.uniform(0.5, 1.5))

    holding = [asyncio.create_task(hold()) for _ in range(FLOOD)]
    async with asyncio.timeout(60):
        await full.wait()
    yield
    for each in holding:
        each.cancel()
    await asyncio.gather(*holding, return_exceptions=True)


async def test_requests_with_a_signature_are_answered_amid_connections_that_want_nothing(port: int) -> None:
    """More connections than there may be descriptors, each with half a body."""
    async with flood(port, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"):
        statuses = []
        for _ in range(20):
            statuses += await asyncio.gather(*(ask(port) for _ in range(10)))
            await asyncio.sleep(0.05)

    assert statuses == [200] * 200
