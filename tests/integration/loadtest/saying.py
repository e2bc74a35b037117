"""A server that says the same bytes to each who asks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def saying(answer: bytes, *, stays: bool = False) -> AsyncIterator[str]:
    """Yield its URL; it closes the connection behind its answer, or, if it `stays`, when the client has."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        with contextlib.suppress(ConnectionError):
            if stays:
                await reader.read()
            writer.close()
            await writer.wait_closed()
        over.set()

    over = asyncio.Event()
    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            await asyncio.wait_for(over.wait(), 5)
