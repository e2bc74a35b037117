"""Where traces go in a bench: takes what comes over HTTP, and keeps nothing but its count."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

_LENGTH: Final = b"\r\ncontent-length:"
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"


class Collector:
    """One that runs."""

    def __init__(self) -> None:
        self.url = ""
        self.batches = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(_LENGTH)[2].partition(b"\r\n")[0]))
                self.batches += 1
                writer.write(_ANSWER)
        writer.close()


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """Run one for the length of a block."""
    made = Collector()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
