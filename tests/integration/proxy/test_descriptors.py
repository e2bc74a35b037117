"""A proxy with a low limit of open files, which all tests share: what is too much gets an answer, never a reset."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
import pytest_asyncio

from baton.proxy.http_server.descriptors import budget
from tests.support.cluster import COMPLETION, until_true
from tests.support.proxy_process import ProxyProcess, proxy_process

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 160


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyProcess]:
    async with proxy_process(tmp_path_factory.mktemp("proxy"), max_files=LIMIT) as made:
        yield made


def request_of(prompt: str) -> bytes:
    body = json.dumps({**COMPLETION, "prompt": prompt}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


SHORT, LONG = request_of("x"), request_of("x" * 2_000_000)


async def ask(port: int, request: bytes = SHORT) -> tuple[int, bytes]:
    """Ask on a connection of its own; return the status and the whole answer."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setblocking(False)
    sent = sock.send(request)  # at once: a proxy that lacks files closes a connection that has no request for 1 s
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.write(request[sent:])
    got = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(got.split(b" ", 2)[1]), got


async def test_above_the_budget_every_request_gets_a_503(running: ProxyProcess) -> None:
    """Ten times as many at once as there may be: those let in are answered, the others know when to come again.

    A long body is read although the proxy does not use it: a connection that is closed with unread data is reset.
    """
    most = budget(LIMIT, members=2).to_nodes // 2
    async with asyncio.timeout(60):
        running.decode[0].may_answer.clear()
        requests = [LONG if turn % (2 * most) == 0 else SHORT for turn in range(10 * most)]
        asked = [asyncio.create_task(ask(running.port, request)) for request in requests]
        await until_true(lambda: sum(each.done() for each in asked) == 9 * most, timeout_s=30)
        running.decode[0].may_answer.set()
        got = await asyncio.gather(*asked)
        after, _ = await ask(running.port)
        said = running.log.read_bytes()

    assert sorted(status for status, _ in got) == [200] * most + [503] * (9 * most)
    assert all(b"retry-after: 1\r\n" in answer for status, answer in got if status == 503)
    assert after == 200
    assert said.count(b"the limit of open files is reached") == 1


async def test_as_many_streams_may_be_open_as_there_are_connections_to_nodes(running: ProxyProcess) -> None:
    """Twice as many as requests that have not got that far; those who want one more are told to come again."""
    most = budget(LIMIT, members=2).to_nodes
    running.decode[0].token_delay_s = 1000
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        for _ in range(most - 1):  # the last connection is not enough for both legs
            while await begin_stream(running.port, stack) == 503:  # noqa: ASYNC110  # a prefill leg of another is still open
                await asyncio.sleep(0.1)
        refused = await ask(running.port)
    running.decode[0].token_delay_s = 0

    assert refused[0] == 503
    assert b"retry-after: 1\r\n" in refused[1]
    assert b"Too many open files" not in running.log.read_bytes()


async def begin_stream(port: int, stack: AsyncExitStack) -> int:
    """Open a stream for as long as the stack lasts, and read its first bytes; return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    body = json.dumps({**COMPLETION, "stream": True}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    if b"text/event-stream" in head:
        await reader.readuntil(b"data: ")
    return int(head.split(b" ", 2)[1])


async def test_idle_connections_make_room_for_requests(running: ProxyProcess) -> None:
    """More than the process may have: the oldest are closed, and a request is answered."""
    async with asyncio.timeout(60):
        idle = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(LIMIT + LIMIT // 2)]
        got = [await ask(running.port) for _ in range(3)]
        async with httpx.AsyncClient() as http:
            health = await http.get(f"{running.url}/health")
        for _, writer in idle:
            writer.close()
        said = running.log.read_bytes()

    assert [status for status, _ in got] == [200] * 3
    assert health.status_code == 200
    assert b"Too many open files" not in said
