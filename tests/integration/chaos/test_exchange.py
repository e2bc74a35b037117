"""The client of the chaos suite against a server that does what it is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.chaos.exchange import Ending, Exchange

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-baton-path: local\r\n\r\n"
)


@asynccontextmanager
async def serve(script: Script) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/completions"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes) -> None:
    """Read a request and answer it with one chunk and `rest`."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HEAD + b"5\r\nhello\r\n" + rest)
    await writer.drain()


async def test_an_answer_that_ends_as_http_says_is_complete() -> None:
    """Status, headers and body have been read."""
    exchange = Exchange("chaos-1", {})
    async with serve(lambda reader, writer: answer(reader, writer, b"0\r\n\r\n")) as url:
        await exchange.run(url)

    assert (exchange.ending, exchange.status, bytes(exchange.received)) == (Ending.COMPLETE, 200, b"hello")
    assert exchange.headers["x-baton-path"] == "local"


@pytest.mark.parametrize("rest", [b"", b"5\r\nhel"])
async def test_an_answer_without_its_end_was_cut(rest: bytes) -> None:
    """The connection closed politely, but HTTP's framing was not finished."""
    exchange = Exchange("chaos-1", {})
    async with serve(lambda reader, writer: answer(reader, writer, rest)) as url:
        await exchange.run(url)

    assert exchange.ending is Ending.CUT
