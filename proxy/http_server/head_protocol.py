"""uvicorn's HTTP protocol with bounded heads: what is too large is answered with 431 or 414, not kept; what is no HTTP with 400."""

from http import HTTPStatus
from typing import Any, Final, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from baton.contracts.http_server import WaitingProtocol
from baton.proxy.errors import ProxyError
from baton.proxy.http.headers import find
from baton.proxy.http_server.head_limits import MAX_TARGET_BYTES, HeadError, HeadLimits, as_bytes
from baton.proxy.request.parse import discard_body

LINGER_S: Final = 2.0  # after a refusal, for a client that is still sending: a reset would swallow the answer


class HeadProtocol(WaitingProtocol):
    """One connection; `_held_bytes` is what the parser may keep without anybody having seen it."""

    head_limits = HeadLimits(max_bytes=32 * 1024, max_headers=128)
    url = b""  # of the request whose head is coming
    _held_bytes = 0
    _hands_over = False
    _head_is_open = False
    _is_refused = False

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless it is too much that leads to nothing: a head, trailers, or a chunk's line without end."""
        if self._is_refused:
            return
        self._hands_over = False
        super().data_received(data)
        if self._hands_over:
            self._held_bytes = 0
        else:
            self._held_bytes += len(data)
            if self._held_bytes > self.head_limits.max_bytes or len(self.url) > MAX_TARGET_BYTES:
                self._refuse_unfinished()

    def on_message_begin(self) -> None:
        self._head_is_open = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Hand the request over if its head is as it may be; what follows its body as trailers is dropped."""
        self._hands_over = True
        self._head_is_open = False
        problem = self.head_limits.problem_of(self.url, self.headers)
        if problem is None:
            super().on_headers_complete()
        else:
            served, self.app = self.app, _refusing(problem)
            try:
                super().on_headers_complete()
            finally:
                self.app = served
        self.headers = []

    def on_chunk_header(self) -> None:
        self._hands_over = True

    def on_body(self, body: bytes) -> None:
        self._hands_over = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._hands_over = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Read no more: uvicorn's parser gave up. An answer before this request is still given, whole, and is the last one."""
        del msg  # uvicorn's words
        self._is_refused = True
        if self.transport.is_closing():
            return
        error = HeadError(HTTPStatus.BAD_REQUEST, "what was sent is not valid HTTP/1.1")
        if not self._is_answering():
            self._answer(error)
        elif self._head_is_open or not self.cycle.more_body:
            self.cycle.keep_alive = False
        elif self.pipeline:  # its head came, its body broke; its turn comes
            self.cycle.more_body = self.cycle.keep_alive = False
            self.pipeline[0] = (self.cycle, cast("Any", _refusing(error)))
        else:
            if not self.cycle.response_started:
                self.transport.write(as_bytes(error))
            self.transport.close()

    def _refuse_unfinished(self) -> None:
        """Read no more. A head is answered, unless the one before it is being answered: then that was the last one."""
        self._is_refused = True
        if self.transport.is_closing():
            return
        if not self._head_is_open:
            self.transport.close()
        elif self._is_answering():
            self.cycle.keep_alive = False
        else:
            self._answer(self.head_limits.problem_of(self.url, self.headers) or self.head_limits.too_large())

    def _answer(self, error: ProxyError) -> None:
        self.transport.write(as_bytes(error))
        self.loop.call_later(LINGER_S, self.transport.close)


def _refusing(problem: ProxyError) -> ASGIApp:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if find(scope["headers"], b"expect") is None:
            await discard_body(receive)
        body = problem.body()
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *problem.headers]
        await send({"type": "http.response.start", "status": problem.status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return refuse
