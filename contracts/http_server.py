"""uvicorn's HTTP protocol, with a bound for how long a connection may be without a request. The proxy and the nodes build on it.

Connections that have no request are known in order, so that a server that has too many can close the oldest.
"""

import asyncio
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_TIMEOUT_S: Final = 60.0  # for a request's head to arrive
Waiting = dict["WaitingProtocol", float]  # connections without a request, and since when; oldest first
_waiting: Final[WeakKeyDictionary[Any, Waiting]] = WeakKeyDictionary()


def waiting_at(server: Any) -> Waiting:
    """Return the connections of a server (its `server_state`) that have no request, and since when; oldest first."""
    return _waiting.setdefault(server, {})


class WaitingProtocol(HttpToolsProtocol):
    """One connection, closed when a head takes too long."""

    head_timeout_s = HEAD_TIMEOUT_S
    _waiting: Waiting
    _due_s: float | None = None  # by when a head must have come; None: there is a request
    # Looks at `_due_s`; fires often enough that a new `_due_s` needs no new timer.
    _due_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self._line()
        self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """From here on the request's own deadline counts."""
        self._expect_nothing()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request. uvicorn's own timer ends with the first byte that comes, be it an empty line."""
        super().on_response_complete()
        if not self._is_answering():  # no pipelined request has begun
            self._waiting[self] = self.loop.time()
            if self._due_s is None:  # no part of a head has come
                self._expect_within(self.timeout_keep_alive + self.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        super().connection_lost(exc)

    def give_way(self) -> None:
        """Close a connection without a request, for another one."""
        self._waiting.pop(self, None)
        # TLS would wait for the client's goodbye, and the descriptor is wanted now.
        (self.transport.close if self.transport.get_write_buffer_size() else self.transport.abort)()

    def _line(self) -> Waiting:
        return waiting_at(self.server_state)

    def _is_answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _expect_head(self) -> None:
        self._expect_nothing()
        if not self._is_answering():
            self._waiting[self] = self.loop.time()
        self._expect_within(self.head_timeout_s)

    def _expect_nothing(self) -> None:
        self._waiting.pop(self, None)
        self._due_s = None

    def _expect_within(self, time_s: float) -> None:
        self._due_s = self.loop.time() + time_s
        if self._due_timer is None:
            self._due_timer = self.loop.call_later(self.head_timeout_s, self._look)

    def _look(self) -> None:
        """See whether a head is late. No time is set that is nearer than the next look, so each is seen when it is over."""
        self._due_timer = None
        if self._due_s is None:
            return
        left_s = self._due_s - self.loop.time()
        if left_s > 0:
            self._due_timer = self.loop.call_later(min(left_s, self.head_timeout_s), self._look)
        elif self._is_answering():  # part of a pipelined request has come; it is not read while there is one before it
            self._expect_head()
        else:
            self._end_late()

    def _end_late(self) -> None:
        """End a connection whose request is late; a client may still read its last answer."""
        self.transport.close()
