"""Connections of the client of the nodes: when they are used again, closed or not made."""

import asyncio
import socket
import sys

import pytest

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http import pool
from baton.proxy.http.address import address_of
from baton.proxy.http.connection import Connection
from baton.proxy.http.upstream import Upstream
from tests.integration.proxy.byte_servers import OK, Handler, answering, post, serving
from tests.support.fake_transport import Transport
from tests.support.ports import free_port

LONG = bytes(200_000)


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
