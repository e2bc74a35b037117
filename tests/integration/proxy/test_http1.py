"""The client of the nodes, against servers that a test writes byte by byte."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http import pool
from baton.proxy.http.address import address_of
from baton.proxy.http.connection import Connection
from baton.proxy.http.response import HIGH_WATER_BYTES, UpstreamResponse
from baton.proxy.http.upstream import Upstream
from tests.support.fake_transport import Transport
from tests.support.ports import free_port

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LONG = bytes(200_000)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Server:
    """Counts connections and hands each to a test's handler."""

    def __init__(self, handler: Handler) -> None:
        self.connections = 0
        self.closed = asyncio.Event()  # by the client, some connection
        self.url = ""
        self._handler = handler

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._handler(reader, writer)
            await reader.read()
        except ConnectionError:
            pass
        finally:
            self.closed.set()
            writer.close()


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[Server, Upstream]]:
    made, upstream = Server(handler), Upstream(connect_timeout_s=1.0)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made, upstream
    finally:
        await upstream.stop()
        server.close()


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return await reader.readexactly(int(length.partition(b":")[2]))


def answering(*answers: bytes, ends: bool = False, reads: int = 0) -> Handler:
    """Answer each request of a connection with the next of these bytes; then end it, having read so many requests more."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await request_of(reader)
            writer.write(answer)
        for _ in range(reads):
            await request_of(reader)
        if ends:
            writer.write_eof()

    return handle


def chunking(*parts: bytes, pause_s: float = 0.0) -> Handler:
    """Answer with a stream of these chunks; the last one comes together with the end."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CHUNKED)
        for number, part in enumerate(parts, 1):
            await asyncio.sleep(pause_s)
            writer.write(b"%x\r\n%b\r\n" % (len(part), part) + (b"0\r\n\r\n" if number == len(parts) else b""))

    return handle


async def post(upstream: Upstream, server: Server, body: bytes = b"{}") -> UpstreamResponse:
    async with asyncio.timeout(10):
        return await upstream.post(server.url, "/v1/x", b"x-own: 1\r\n", body)


async def test_an_answer_that_came_whole_leaves_its_connection_to_the_next_request_at_once() -> None:
    """Also before the one who asked has woken: sixteen callers take turns on few connections and none hangs."""
    async with serving(answering(*[OK] * 200)) as (server, upstream):

        async def caller() -> list[bytes]:
            return [await (await post(upstream, server)).read_all() for _ in range(10)]

        read = await asyncio.gather(*(caller() for _ in range(16)))

        assert read == [[b"ok"] * 10] * 16


@pytest.mark.parametrize(
    ("handler", "answers", "connections"),
    [
        # The node restarted while it was idle: the request goes out once more.
        (answering(OK, reads=1, ends=True), [b"ok", b"ok"], 2),
        # Without a length a body ends with its connection, as HTTP/1.0 servers do it.
        (answering(b"HTTP/1.1 200 OK\r\n\r\nall of it", ends=True), [b"all of it", b"all of it"], 2),
        # Interim answers are none.
        (
            answering(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, OK),
            [b"ok", b"ok"],
            1,
        ),
        # It was not read for a while, as the reader took nothing of what had come, and then the answer was complete.
        (answering(OK, b"HTTP/1.1 200 OK\r\ncontent-length: 200000\r\n\r\n" + LONG, OK), [b"ok", LONG, b"ok"], 1),
    ],
    ids=["closed while idle", "no length", "interim", "a long answer"],
)
async def test_a_connection_is_used_again_or_replaced(handler: Handler, answers: list[bytes], connections: int) -> None:
    async with serving(handler) as (server, upstream), asyncio.timeout(20):
        for expected in answers:
            answer = await post(upstream, server)
            await asyncio.sleep(0.05)  # all of it has come, or waits in the kernel

            assert {name for name, _ in answer.headers} <= {b"content-length"}
            assert await answer.read_all() == expected
        assert server.connections == connections


async def test_bytes_that_answer_no_request_end_the_connection() -> None:
    """They would be taken for the next request's answer."""
    async with serving(answering(OK + OK, OK)) as (server, upstream):
        assert [(await post(upstream, server)).status for _ in range(2)] == [200, 200]
        assert server.connections == 2


async def test_idle_connections_are_closed_before_the_node_would_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not used at that very moment."""
    monkeypatch.setattr(pool, "KEEP_ALIVE_S", 0.05)
    async with serving(answering(OK)) as (server, upstream):
        await (await post(upstream, server)).read_all()

        async with asyncio.timeout(20):
            await server.closed.wait()


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"SSH-2.0-OpenSSH\r\n", FailureKind.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", FailureKind.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\ncontent-le", FailureKind.DISCONNECT),
        (b"", FailureKind.DISCONNECT),
    ],
)
async def test_what_is_no_answer_is_named(sent: bytes, kind: FailureKind) -> None:
    """By what happened, so that the breaker can count it."""
    async with serving(answering(sent, ends=True)) as (server, upstream):
        with pytest.raises(UpstreamError) as caught:
            await post(upstream, server)

        assert caught.value.kind is kind
        assert server.connections == 1  # it cannot be known what became of the request: it is not sent again


@pytest.mark.parametrize(
    "cut",
    [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", CHUNKED + b"2\r\nok\r\n", CHUNKED + b"9\r\nok"],
)
async def test_a_body_that_is_cut_is_a_failure_behind_what_came(cut: bytes) -> None:
    """Neither is the first part lost, nor is it taken for the whole."""
    async with serving(answering(cut, ends=True)) as (server, upstream):
        answer = await post(upstream, server)

        assert await answer.read_some() == b"ok"
        with pytest.raises(UpstreamError) as caught:
            await answer.read_some()
        assert caught.value.kind is FailureKind.DISCONNECT


@pytest.mark.parametrize("begins", [True, False])
async def test_bytes_that_are_no_http_end_the_connection_at_once(begins: bool) -> None:
    """Instead of an answer or in the middle of one; what came before them is not lost."""
    read: list[bytes] = []

    async def read_all() -> None:
        answer = await asking
        while part := await answer.read_some():
            read.append(part)

    connection, transport = Connection(lambda _: None, lambda _: None), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    asking = connection.send(b"request")
    if begins:
        connection.data_received(CHUNKED + b"2\r\nok\r\n")
    connection.data_received(b"zz\r\n")
    connection.connection_lost(None)

    assert transport.aborted
    with pytest.raises(UpstreamError) as caught:
        await read_all()
    assert caught.value.kind is FailureKind.PROTOCOL
    assert read == [b"ok"] * begins


@pytest.mark.parametrize("waits", [True, False])
async def test_a_request_that_is_given_up_closes_its_connection(waits: bool) -> None:
    """So the node learns of it; also of one that was sent on a kept connection, and whose answer was not awaited yet."""
    async with serving(answering(OK, reads=1)) as (server, upstream):
        await (await post(upstream, server)).read_all()
        if waits:
            asking = asyncio.create_task(post(upstream, server))
            await asyncio.sleep(0.05)
            asking.cancel()
        else:
            upstream.send(server.url, "/v1/x", b"", b"{}").close()

        async with asyncio.timeout(20):
            await server.closed.wait()
        assert server.connections == 1


async def test_a_request_that_leaves_as_the_answer_comes_leaves_the_connection_to_others() -> None:
    """The answer was complete, so another request has its connection already: it is not closed under that."""
    connection = Connection(lambda _: None, lambda _: None)
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    leaving = connection.send(b"first")
    transport.unread_bytes = 0
    connection.data_received(OK)
    staying = connection.send(b"second")
    connection.forget(leaving)
    transport.unread_bytes = 0
    connection.data_received(OK)

    assert (await staying).status == 200
    assert not transport.closing


@pytest.mark.parametrize(("unsent_bytes", "kept"), [(0, 1), (5, 0)])
async def test_a_connection_with_a_request_half_sent_is_not_kept(unsent_bytes: int, kept: int) -> None:
    """The server has answered before it read all: the rest would be taken for the next request."""
    given_back: list[Connection] = []
    connection = Connection(given_back.append, lambda _: None)
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    asking = connection.send(b"request")
    transport.unread_bytes = unsent_bytes
    connection.data_received(OK)

    assert (await asking).status == 200
    assert len(given_back) == kept
    assert transport.closing == (not kept)


async def test_a_node_that_sends_faster_than_is_read_waits() -> None:
    """What is held of it stays bounded."""
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        for _ in range(1000):
            writer.write(bytes(100_000))
            await writer.drain()
            written += 100_000

    async with serving(flood) as (server, upstream):
        answer = await post(upstream, server)
        await asyncio.sleep(0.3)
        held = written
        assert held < 50_000_000  # the kernel's buffers, and ours
        read = len(await answer.read_some())
        assert HIGH_WATER_BYTES <= read < 4_000_000
        while part := await answer.read_some():
            read += len(part)
        assert read == 100_000_000


async def test_a_sink_gets_every_byte_in_order_and_is_spared_while_it_is_full() -> None:
    """What came before it was there too; it says when it is full, and the node is not read until it is not."""
    events = [b"data: %d\n\n" % at for at in range(200)]
    taken: list[bytes] = []
    full, waits = False, 0

    def sink(data: bytes, _is_last: bool) -> bool:
        nonlocal full
        assert not full
        taken.append(data)
        full = len(taken) % 3 == 0
        return not full

    async def wait_writable() -> None:
        nonlocal full, waits
        await asyncio.sleep(0.001)
        full, waits = False, waits + 1

    async with serving(chunking(*events)) as (server, upstream):
        answer = await post(upstream, server)
        first = await answer.read_event()
        async with asyncio.timeout(10):
            await answer.pour(sink, wait_writable)

        assert first + b"".join(taken) == b"".join(events)
        assert waits >= 1


async def test_a_sink_is_told_which_bytes_are_the_last() -> None:
    """Those that came together with the end of the answer."""
    taken: list[tuple[bytes, bool]] = []

    def sink(data: bytes, is_last: bool) -> bool:
        taken.append((data, is_last))
        return True

    async with serving(chunking(b"first", b"last", pause_s=0.05)) as (server, upstream):
        answer = await post(upstream, server)
        async with asyncio.timeout(10):
            await answer.pour(sink, asyncio.Event().wait)  # type: ignore[arg-type]

    assert taken == [(b"first", False), (b"last", True)]


async def test_what_a_sink_raises_reaches_the_one_who_pours() -> None:
    """And the sink gets nothing more."""
    calls = 0

    def sink(_: bytes, _is_last: bool) -> bool:
        nonlocal calls
        calls += 1
        raise LookupError("enough")

    async with serving(chunking(*[b"x"] * 1000, pause_s=0.001)) as (server, upstream):
        answer = await post(upstream, server)
        with pytest.raises(LookupError):
            async with asyncio.timeout(10):
                await answer.pour(sink, asyncio.Event().wait)  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        answer.close()

        assert calls == 1


async def test_a_refused_connection_is_told_from_silence() -> None:
    """A full queue of connections, or packets that are lost, say nothing of the process; nor does an answer that does not come."""
    upstream = Upstream(connect_timeout_s=0.2)
    listening = socket.create_server(("127.0.0.1", free_port()), backlog=0)
    url = "http://{}:{}".format(*listening.getsockname())
    kinds = []
    with socket.create_connection(listening.getsockname()):  # it fills the queue
        for _ in range(2):
            with pytest.raises(UpstreamError) as raised:
                await upstream.connect(address_of(url))
            kinds.append(raised.value.kind)
            listening.close()
    async with serving(answering()) as (server, upstream):
        with pytest.raises(UpstreamError) as raised:
            async with upstream.get(server.url, "/health", timeout_s=0.1):
                pass

    assert [*kinds, raised.value.kind] == [FailureKind.TIMEOUT, FailureKind.CONNECT, FailureKind.TIMEOUT]


def rto_max_is_known() -> bool:
    """Whether this kernel lets the longest pause between two retransmissions be set."""
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, pool.TCP_RTO_MAX_MS, 1_000)
        except OSError:
            return False
    return sys.platform == "linux"


@pytest.mark.skipif(not rto_max_is_known(), reason="it takes Linux 6.15")
async def test_a_node_hears_soon_after_an_outage_that_a_request_has_ended() -> None:
    """TCP alone would tell it after the outage's length once more, and the node would keep the request's blocks until then."""

    async def never(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    made = pool.Pool()
    connection = await made.connect(address_of("http://{}:{}".format(*server.sockets[0].getsockname())))
    assert connection._transport is not None
    sock = connection._transport.get_extra_info("socket")
    found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in (pool.TCP_RTO_MAX_MS, socket.TCP_USER_TIMEOUT)]
    made.close()
    server.close()
    await server.wait_closed()

    assert found == [pool.RETRANSMIT_EVERY_MS, pool.UNACKNOWLEDGED_MS]
