"""Clients' connections: no more than the limit of open files allows, each with a request, or soon.

A connection that waits for its next request, or for the rest of one's head, is the one that can be missed: the oldest of
these is closed when there are too many. Without that, the limit itself would be reached, and libuv then closes new
connections before anybody could answer 503.
"""

import asyncio
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from contracts.configuration.schema import ProxyConfig
from proxy.admission import descriptors
from proxy.joined_head import HeadJoiner
from proxy.stalled import STALLED, ReadWatch

HEAD_TIMEOUT_S: Final = 60.0  # for a request's head to arrive
_waiting: Final[WeakKeyDictionary[Any, dict["ClientProtocol", None]]] = WeakKeyDictionary()  # by server


class ClientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, bounded, and with a response's head and first bytes in one write."""

    stall_timeout_s = 60.0
    members = 0
    _watch: ReadWatch
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection; another one may have to go."""
        self._watch = ReadWatch(transport, self.stall_timeout_s, self._drop)
        super().connection_made(cast("asyncio.Transport", HeadJoiner(transport, self._watch)))
        self._idle = _waiting.setdefault(self.server_state, {})
        self._expect_head()
        if len(self.connections) > descriptors.budget(descriptors.limit(), self.members).connections:
            oldest = next(iter(self._idle))
            if oldest is not self:
                oldest.transport.close()

    def on_message_begin(self) -> None:
        """Give the head its time."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """From here on the request's own deadline counts."""
        self._head_came()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self.cycle.response_complete:  # no pipelined request has begun
            self._idle[self] = None

    def pause_writing(self) -> None:
        """The client is slow."""
        super().pause_writing()
        self._watch.start()

    def resume_writing(self) -> None:
        """It has read."""
        self._watch.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End it."""
        self._watch.stop()
        self._head_came()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_came()
        self._idle[self] = None
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _head_came(self) -> None:
        self._idle.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _drop(self) -> None:
        if self.scope is not None:
            self.scope[STALLED] = True  # type: ignore[typeddict-unknown-key]


def protocol(config: ProxyConfig) -> type[ClientProtocol]:
    """Return what uvicorn's `http` setting takes."""
    members = len(config.prefill) + len(config.decode)
    return type("Protocol", (ClientProtocol,), {"stall_timeout_s": config.client_stall_timeout_s, "members": members})
