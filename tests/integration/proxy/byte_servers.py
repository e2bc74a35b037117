"""Servers that a test writes byte by byte, and the client of the nodes in front of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from baton.proxy.http.response import UpstreamResponse
from baton.proxy.http.upstream import Upstream

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
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


async def post(upstream: Upstream, server: Server, body: bytes = b"{}") -> UpstreamResponse:
    async with asyncio.timeout(10):
        return await upstream.post(server.url, "/v1/x", b"x-own: 1\r\n", body)
