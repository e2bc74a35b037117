"""One HTTP/1.1 connection, on which one request at a time is asked.

Bytes are stamped in `data_received`, the first moment this process knows of them, and handed to a sink at once: no task has
to be woken for a chunk. What is read is never held back; the sinks are quick.
"""

import asyncio
import time
from typing import Final, Protocol, cast

import httptools

_NO_STATUS: Final = 0


class WireError(Exception):
    """A request came to nothing; the message says how."""


class LostError(WireError):
    """The connection ended before the answer did."""


class Sink(Protocol):
    """Takes an answer as it arrives."""

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        """Take status and headers, the names in lower case."""
        ...

    def on_body(self, data: bytes, now_s: float) -> None: ...


class Connection(asyncio.Protocol):
    """A connection; `ask` it for one answer after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._answered: asyncio.Future[None] | None = None
        self._headers: dict[str, str] = {}
        self._status = _NO_STATUS  # of the answer under way
        self._now_s = 0.0
        self.reusable = False
        self.idle_since_s = 0.0

    async def ask(self, request: bytes, sink: Sink) -> None:
        """Send a request; return when its answer is complete. Raises `WireError`: it is not, or is no HTTP."""
        if self._transport is None or self._transport.is_closing():
            raise LostError("the connection is closed")
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self._headers, self._status, self.reusable = sink, {}, _NO_STATUS, False
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._answered
        finally:
            self._answered = self._sink = None
            if not self.reusable:
                self.close()
            self.idle_since_s = time.perf_counter()

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        if self._parser is None or self._sink is None:  # nothing was asked: some servers say why they close
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._end(WireError(f"no HTTP: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer under way: well if only this could end it, badly otherwise."""
        self.reusable = False
        if exc is None and self._status >= 200 and not self._has_length():
            self._end(None)
        else:
            self._end(LostError(str(exc) if exc else "the server closed the connection"))

    # httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Hand the head on; a 1xx is none."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status >= 200 and self._sink is not None:
            self._status = status
            self._sink.on_head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if self._sink is not None:
            self._sink.on_body(body, self._now_s)

    def on_message_complete(self) -> None:
        if self._status >= 200:
            assert self._parser is not None
            self.reusable = self._parser.should_keep_alive() and self._has_length()
            self._end(None)

    def _has_length(self) -> bool:
        return "content-length" in self._headers or "chunked" in self._headers.get("transfer-encoding", "").lower()

    def _end(self, error: WireError | None) -> None:
        if self._answered is None or self._answered.done():
            return
        if error is None:
            self._answered.set_result(None)
        else:
            self._answered.set_exception(error)
