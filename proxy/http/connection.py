"""One connection to a node, on which one request at a time is under way."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.headers import RawHeaderList
from baton.proxy.http.response import UpstreamResponse

MAX_HEAD_BYTES: Final = 1 << 16


class UnusedError(Exception):
    """The connection ended before a byte of the answer came; the request may be sent once more on another one."""


class Connection(asyncio.Protocol):
    """A connection, from its start until it is lost."""

    def __init__(self, done: Callable[["Connection"], None], lost: Callable[["Connection"], None]) -> None:
        """`done` is called when an answer is complete and another request may be sent, `lost` when none may any more."""
        self._done = done
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head: asyncio.Future[UpstreamResponse] | None = None  # waited for; None from its arrival on
        self._answer: UpstreamResponse | None = None  # under way
        self._headers: RawHeaderList = []
        self._head_bytes = 0
        self._pieces: list[bytes] = []  # of the body, out of what is being parsed
        self._complete = False  # the answer under way, whose last pieces are to be handed on
        self._reusable = False
        self.is_open = True
        self.idle_since_s = 0.0

    def send(self, request: bytes) -> asyncio.Future[UpstreamResponse]:
        """Send a request; what is returned gets the head of its answer.

        It gets an `UnusedError` if nothing of an answer came, an `UpstreamError` if what came is no HTTP, or broke off
        inside its head. `forget` it if no caller waits for it any more.
        """
        head: asyncio.Future[UpstreamResponse] = asyncio.get_running_loop().create_future()
        if self._is_alive():
            assert self._transport is not None
            self._head = head
            self._transport.write(request)
        else:
            head.set_exception(UnusedError())
        return head

    def forget(self, head: asyncio.Future[UpstreamResponse]) -> None:
        """Close the connection under a request that no caller waits for; by its answer's end it may be another request's."""
        if head.cancelled() or not head.done():
            head.cancel()
            self.abandon()
        elif head.exception() is None:
            head.result().close()

    def abandon(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None and self._is_alive():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._is_alive():
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        """Parse what came; hand its body on as one piece."""
        if self._head is None and self._answer is None:  # nothing was asked: some servers say why they close
            self.abandon()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(UpstreamError(FailureKind.PROTOCOL, "its answer is not HTTP"))
            return
        answer = self._answer
        if answer is None:
            return
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            answer.arrived(pieces[0] if len(pieces) == 1 else b"".join(pieces), is_last=self._complete)
        if self._complete:
            self._finish(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is under way: well if only the connection's end could end it, badly otherwise."""
        self.is_open = False
        self._lost(self)
        self._refuse_head(_cut() if self._headers else UnusedError())
        if self._answer is not None:
            answer, self._answer = self._answer, None
            answer.end(None if exc is None and not _has_length(answer.headers) else _cut())

    # httptools' callbacks

    def on_message_begin(self) -> None:
        self._headers = []
        self._head_bytes = 0
        if self._answer is not None:  # behind a complete one, or before it was read
            raise ValueError("an answer without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head is too long")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand the head on; a 1xx is none."""
        status = self._parser.get_status_code()
        if status < 200:
            return
        head, self._head = self._head, None  # another request may be sent before this one's sender has woken
        if head is None or head.done():  # cancelled in this turn of the loop; `forget` comes when its caller wakes
            raise ValueError("no caller waits for this answer")
        self._answer = UpstreamResponse(self, status, self._headers)
        head.set_result(self._answer)

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._answer is not None:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()

    def _is_alive(self) -> bool:
        """Whether anything may be asked of the transport: uvloop's raises once it is closing, which is told us later."""
        return self.is_open and self._transport is not None and not self._transport.is_closing()

    def _has_sent_all(self) -> bool:
        """Whether no part of a request is left that its server did not wait for."""
        return self._is_alive() and self._transport is not None and not self._transport.get_write_buffer_size()

    def _finish(self, answer: UpstreamResponse) -> None:
        self._complete, self._answer = False, None
        self._headers = []
        self._head_bytes = 0
        answer.end()
        if self._reusable and self._has_sent_all():
            self._done(self)
        else:
            self.abandon()

    def _refuse_head(self, error: Exception) -> None:
        head, self._head = self._head, None
        if head is not None and not head.done():
            head.set_exception(error)

    def _fail(self, error: UpstreamError) -> None:
        """Give up a connection whose bytes make no sense."""
        self._refuse_head(error)
        if self._answer is not None:
            answer, self._answer = self._answer, None
            answer.end(error)
        self.abandon()


def _has_length(headers: RawHeaderList) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)


def _cut() -> UpstreamError:
    return UpstreamError(FailureKind.DISCONNECT, "its connection ended before its answer did")
