"""Answers to the client of the nodes: which are none, which are cut, and how they are read and passed on."""

import asyncio

import pytest

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.connection import Connection
from baton.proxy.http.response import HIGH_WATER_BYTES
from tests.integration.proxy.byte_servers import CHUNKED, Handler, answering, post, request_of, serving
from tests.support.fake_transport import Transport


def chunking(*parts: bytes, pause_s: float = 0.0) -> Handler:
    """Answer with a stream of these chunks; the last one comes together with the end."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CHUNKED)
        for number, part in enumerate(parts, 1):
            await asyncio.sleep(pause_s)
            writer.write(b"%x\r\n%b\r\n" % (len(part), part) + (b"0\r\n\r\n" if number == len(parts) else b""))

    return handle


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
