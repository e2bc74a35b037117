"""Clients that read slowly, or not at all, on real sockets: what they may cost."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.proxy.test_failures import assert_nothing_left
from tests.support.cluster import COMPLETION, Cluster, cluster, until_true

MIB = 1 << 20
EVENT_BYTES = 64 * 1024
SLOWLY_BYTES = 210 * 8192
EVENTS = 800  # 50 MiB: more than the kernel holds on both connections


@contextmanager
def client(running: Cluster, body: dict[str, Any]) -> Iterator[socket.socket]:
    """Send a request from a socket with a small buffer, and read nothing."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.connect(("127.0.0.1", int(running.url.rsplit(":", 1)[1])))
        sent = json.dumps({**COMPLETION, **body}).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(sent) + sent)
        sock.setblocking(False)
        yield sock


async def until_still(running: Cluster) -> int:
    """Wait until the decode node has sent something and can send no more; return how much."""
    before, same = 0, 0
    while same < 10:
        await asyncio.sleep(0.02)
        now = running.decode[0].sent_bytes
        same = same + 1 if now and now == before else 0
        before = now
    return before


async def read_all(sock: socket.socket, end: bytes, *, stops_early: bool = False) -> bytearray:
    """Read until the end of an answer; or of its connection, if that is expected."""
    loop, data = asyncio.get_running_loop(), bytearray()
    async with asyncio.timeout(30):
        while not data.endswith(end):
            try:
                part = await loop.sock_recv(sock, MIB)
            except ConnectionError:
                part = b""
            if not part:
                assert stops_early, "the connection ended first"
                break
            data += part
    return data


async def read_slowly(sock: socket.socket) -> None:
    """Read less than two MiB in three seconds."""
    for _ in range(30):
        await asyncio.sleep(0.1)
        for _ in range(7):
            await asyncio.get_running_loop().sock_recv(sock, SLOWLY_BYTES // 210)


async def test_a_client_that_does_not_read_holds_the_decode_node_back() -> None:
    """What the proxy keeps for it is bounded.

    It is not dropped while it reads a little: less than the kernel's share of the buffers in all of this time. In the end it gets everything.
    """
    async with cluster(client_stall_timeout_s=1.0) as running:
        running.decode[0].padding_bytes = EVENT_BYTES
        with client(running, {"stream": True, "max_tokens": EVENTS}) as sock:
            sent = await until_still(running)
            await read_slowly(sock)
            still_there = not running.decode[0].seen[0].cancelled
            got = await read_all(sock, b"0\r\n\r\n")
        await assert_nothing_left(running)

    assert still_there
    assert sent < EVENTS * EVENT_BYTES * 0.8  # the kernel's share is several MiB on each connection
    assert len(got) + SLOWLY_BYTES > EVENTS * EVENT_BYTES
    assert b"data: [DONE]" in got[-100:]


async def test_a_whole_answer_that_is_not_read_does_not_hold_its_connection_for_ever() -> None:
    """The request has ended; its last bytes stay unread. Where the connection is to be closed: `test_tls.py`."""
    async with cluster(client_stall_timeout_s=0.3) as running:
        running.decode[0].padding_bytes = EVENTS * EVENT_BYTES
        with client(running, {}) as sock:
            await until_true(lambda: any(request.finished for request in running.decode[0].seen), timeout_s=30)
            await assert_nothing_left(running)
            await asyncio.sleep(1.0)
            got = await read_all(sock, b"never", stops_early=True)

    assert b"content-length: " in got[:1000]
    assert len(got) < EVENTS * EVENT_BYTES
