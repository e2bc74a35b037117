"""One HTTP/1.1 connection of a mock: bytes → requests, one at a time, and answers → bytes."""

import asyncio
from typing import NamedTuple, Protocol, cast

import httptools

from baton.loadtest.mock_engine.answers import whole
from baton.loadtest.mock_engine.wheel import Due


class Request(NamedTuple):
    """A request as it came."""

    method: bytes
    path: str
    headers: dict[str, str]
    body: bytes


class Engine(Protocol):
    """Answers a connection's requests."""

    def serve(self, request: Request, line: "Connection") -> None:
        """Begin to answer; what is under way is `line.answer`."""

    def ended(self, answer: Due, *, complete: bool) -> None: ...

    def lost(self, answer: Due) -> None:
        """Note that no client waits for an answer any more."""


class Connection(asyncio.Protocol):
    """A connection; it calls the engine for each request, and tells it when the client leaves in the middle."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = b""
        self._busy = False
        self._keeps = True
        self.answer: Due | None = None  # the engine's, under way

    # for the engine

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def end(self) -> None:
        self._leave(complete=True)
        if not self._keeps:
            self.close()

    def close(self) -> None:
        """Close behind what was sent."""
        self._leave(complete=False)
        assert self._transport is not None
        self._transport.close()

    def drop(self) -> None:
        self._busy, self.answer = False, None
        assert self._transport is not None
        self._transport.abort()

    def _leave(self, *, complete: bool) -> None:
        answer, self.answer, self._busy = self.answer, None, False
        if answer is not None:
            self._engine.ended(answer, complete=complete)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.close()
        except httptools.HttpParserError:
            self.write(whole(400, b"Invalid HTTP request received."))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Tell the answer under way that no client waits for it."""
        answer, self.answer, self._busy = self.answer, None, False
        if answer is not None:
            self._engine.lost(answer)

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        """Have it answered; one that comes before the last answer ended is no request of any proxy that we know."""
        if self._busy:
            self.drop()
            return
        self._busy, self._keeps = True, self._parser.should_keep_alive()
        path = self._url.partition(b"?")[0].decode("latin-1")
        self._engine.serve(Request(self._parser.get_method(), path, self._headers, self._body), self)
