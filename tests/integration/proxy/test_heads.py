"""Requests whose heads, or trailers, are larger than they may be; on real sockets."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.cluster import COMPLETION, Cluster, cluster, until_true

BODY = json.dumps(COMPLETION).encode()
LINE = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
WHOLE = LINE + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _short_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection stays open after a refusal, and a test waits for its end."""
    monkeypatch.setattr("baton.proxy.http_server.head_protocol.LINGER_S", 0.2)


@contextmanager
def connected(running: Cluster) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(running.url.rsplit(":", 1)[1]))) as sock:
        sock.setblocking(False)
        yield sock


async def exchange(sock: socket.socket, sent: bytes, *, until: bytes = b"") -> bytes:
    """Send, and read until the connection ends, or these bytes have come; a reset ends it too."""
    loop, got = asyncio.get_running_loop(), b""
    sending = asyncio.create_task(loop.sock_sendall(sock, sent))
    async with asyncio.timeout(20):
        try:
            while part := await loop.sock_recv(sock, 65536):
                got += part
                if until and until in got:
                    break
        except ConnectionError:
            pass
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    return got


def status(got: bytes) -> int:
    return int(got.split(b" ", 2)[1])


async def test_a_head_beyond_its_bounds_is_refused_in_openais_shape() -> None:
    """And the connection ends, whether the head has an end or not."""
    too_much = {
        "long": (LINE + b"x: %b\r\n\r\n" % (b"a" * 5000), 431),
        "endless": (LINE + b"x: %b" % (b"a" * 5000), 431),
        "a MiB of it": (LINE + b"x: %b" % (b"a" * MIB), 431),
        "long name": (LINE + b"%b: x\r\n\r\n" % (b"a" * 5000), 431),
        "many": (LINE + b"x: y\r\n" * 20 + b"\r\n", 431),
        "long line": (b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"a" * 9000), 414),
        "endless line": (b"GET /%b" % (b"a" * 9000), 414),
        "long query": (b"GET /health?%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"a" * 5000), 431),
    }
    async with cluster(max_header_bytes=4000, max_headers=10) as running:
        for name, (sent, expected) in too_much.items():
            with connected(running) as sock:
                got = await exchange(sock, sent)
            assert status(got) == expected, name
            error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
            assert (error["code"], error["type"]) == (expected, "invalid_request_error"), name
        assert (await running.complete()).status_code == 200
        assert len(running.decode[0].seen) == 1


async def test_a_large_body_is_no_large_head() -> None:
    """In one piece or in small chunks, on a connection that is used again."""
    prompt = "word " * 4000
    body = json.dumps({**COMPLETION, "prompt": prompt}).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 7]), body[at : at + 7]) for at in range(0, len(body), 7))
    async with cluster(max_header_bytes=4000) as running:
        with connected(running) as sock:
            got = [
                await exchange(sock, LINE + b"content-length: %d\r\n\r\n" % len(body) + body, until=b'"choices"'),
                await exchange(
                    sock, LINE + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", until=b'"choices"'
                ),
                await exchange(sock, WHOLE, until=b'"choices"'),
            ]

    assert [status(each) for each in got] == [200] * 3


@pytest.mark.parametrize("sent", [b"0\r\nx: " + b"a" * MIB, b"5;" + b"a" * MIB], ids=["trailer", "chunk extension"])
async def test_trailers_without_end_are_not_kept(sent: bytes) -> None:
    """The parser would hold all of a trailer; the connection is closed."""
    async with cluster(max_header_bytes=4000) as running:
        with connected(running) as sock:
            await exchange(sock, LINE + b"transfer-encoding: chunked\r\n\r\n" + sent)
        fine = await running.complete()
        seen = len(running.decode[0].seen)

    assert (fine.status_code, seen) == (200, 1)


async def test_trailers_are_no_headers() -> None:
    """They come when the request is under way; nodes must not see them as the client's headers."""
    chunked = b"%x\r\n%b\r\n0\r\nx-late: yes\r\n\r\n" % (len(BODY), BODY)
    async with cluster() as running:
        with connected(running) as sock:
            got = await exchange(sock, LINE + b"transfer-encoding: chunked\r\n\r\n" + chunked, until=b'"choices"')

        assert "x-late" not in running.decode[0].seen[0].headers
    assert status(got) == 200


async def test_what_is_not_http_is_refused_in_openais_shape() -> None:
    """Once, and then the connection ends."""
    wrong = {
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "no header": LINE + b"no colon\r\n\r\n",
        "no number": LINE + b"content-length: many\r\n\r\n",
        "two lengths": LINE + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        "a broken chunk": LINE + b"transfer-encoding: chunked\r\n\r\nnothing hexadecimal\r\n",
    }
    async with cluster() as running:
        for name, sent in wrong.items():
            with connected(running) as sock:
                got = await exchange(sock, sent)
            assert got.count(b"HTTP/1.1 ") == 1, name
            error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
            assert (status(got), error["code"], error["type"]) == (400, 400, "invalid_request_error"), name
        assert (await running.complete()).status_code == 200


@pytest.mark.parametrize(
    ("with_it", "behind_it"),
    [(b"\x00\r\n", b""), (b"", b"\x00\r\n"), (b"", LINE + b"x: " + b"a" * 100_000)],
    ids=["no HTTP with it", "no HTTP while it is answered", "a large head while it is answered"],
)
async def test_what_is_refused_behind_a_request_does_not_spoil_its_answer(with_it: bytes, behind_it: bytes) -> None:
    """The first one's answer is whole, and the last of the connection: nothing is written into it."""
    async with cluster(max_header_bytes=4000) as running:
        running.decode[0].may_answer.clear()
        with connected(running) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, WHOLE + with_it)
            await until_true(lambda: running.decode[0].seen)
            answer = asyncio.create_task(exchange(sock, behind_it))
            await asyncio.sleep(0.1)
            running.decode[0].may_answer.set()
            got = await answer

    assert got.count(b"HTTP/1.1 ") == 1
    assert status(got) == 200
    assert got.rstrip().endswith(b"}")


async def test_a_body_that_breaks_behind_a_request_is_refused_after_its_answer() -> None:
    """Each of the two is answered, in their order."""
    async with cluster() as running:
        with connected(running) as sock:
            broken = LINE + b"transfer-encoding: chunked\r\n\r\nnothing hexadecimal\r\n"
            got = await exchange(sock, WHOLE + broken, until=b"invalid_request_error")

    assert [status(b"HTTP/1.1 " + each) for each in got.split(b"HTTP/1.1 ")[1:]] == [200, 400]
    assert json.loads(got.rpartition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
