"""Clients' connections: none waits without a bound for a request, for the rest of one's head, or for a client that reads.

Those without a request are known in order, so that `accept.py` can close the oldest where there are too many.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.access.head_protocol import HeadProtocol
from baton.proxy.access.heads import HeadLimits
from baton.proxy.joined_head import HeadJoiner
from baton.proxy.stalled import STALLED, ReadWatch

HEAD_TIMEOUT_S: Final = 60.0  # for a request's head to arrive
TLS_BUFFER_BYTES: Final = 64 * 1024  # as without TLS, where the usual bound is 512 KiB
LAST_REQUEST_S: Final = 0.2  # likewise, when the proxy stops
_LAST_CHUNK: Final = b"0\r\n\r\n"
_WRITER: Final = "baton.writer"  # among the extensions of a request's scope
_waiting: Final[WeakKeyDictionary[Any, dict["ClientProtocol", float]]] = WeakKeyDictionary()


class Writer:
    """What a request knows of its client's connection beside ASGI: a stream's way through that costs more than its write.

    What is written here uvicorn's own state of the request is told, so that everything else goes on as after ASGI's `send`.
    """

    __slots__ = ("_cycle", "_flow", "_gone", "_protocol", "_transport")

    def __init__(self, protocol: "ClientProtocol", transport: asyncio.WriteTransport) -> None:
        """The request is the one that the protocol has just read the head of; `transport` is the protocol's, bare."""
        self._protocol = protocol
        self._cycle = protocol.cycle
        self._flow = protocol.flow
        self._transport = transport
        self._gone: Callable[[], None] | None = None

    def tell_when_gone(self, gone: Callable[[], None] | None) -> bool:
        """Have something called when the client leaves, or nothing any more; return whether it is there.

        It is read on, since a body that was read to its end may have left its connection paused.
        """
        self._gone = gone
        self._protocol.answering = None if gone is None else self
        if gone is not None and not self._cycle.disconnected:
            self._flow.resume_reading()
        return not self._cycle.disconnected

    def lost(self) -> None:
        """The connection has ended. uvicorn tells the last request of those that were sent together, and no other."""
        self._cycle.disconnected = True
        if self._gone is not None:
            self._gone()

    def begin(self, status: int, headers: Sequence[tuple[bytes, bytes]], first: bytes, *, ends: bool = False) -> bool:
        """Write the head of a chunked response with its first chunk, if there is one yet; with its end too if it `ends`.

        See `write` for what is returned.
        """
        cycle = self._cycle
        cycle.response_started = cycle.chunked_encoding = True
        cycle.waiting_for_100_continue = False
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % pair for pair in chain(cycle.default_headers, headers))]
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"transfer-encoding: chunked\r\n\r\n")
        if first:
            lines.append(_chunk(first))
        if not ends:
            return self._write(b"".join(lines))
        lines.append(_LAST_CHUNK)
        keeps_up = self._write(b"".join(lines))
        self._complete()
        return keeps_up

    def write(self, chunk: bytes) -> bool:
        """Write a chunk, which is not empty; return whether the client keeps up."""
        return self._write(_chunk(chunk))

    def end(self) -> None:
        """End a chunked response; the connection waits for the next request, or is closed."""
        cycle = self._cycle
        if cycle.disconnected or cycle.response_complete:
            return
        self._write(_LAST_CHUNK)
        self._complete()

    def _complete(self) -> None:
        cycle = self._cycle
        if cycle.disconnected:
            return
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    async def drained(self) -> None:
        """Wait until the client has read enough, or left."""
        await self._flow.drain()

    def _write(self, data: bytes) -> bool:
        if not self._transport.is_closing():  # uvloop would raise
            self._transport.write(data)
        return not self._flow.write_paused


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def writer_of(scope: Scope) -> Writer:
    """Return the writer of a request's response."""
    writer: Writer = scope["extensions"][_WRITER]
    return writer


class ClientProtocol(HeadProtocol):
    """uvicorn's HTTP protocol, bounded, and with a response's head and first bytes in one write."""

    stall_timeout_s = 60.0
    _watch: ReadWatch
    _direct: asyncio.Transport
    answering: Writer | None = None  # of the request that is being answered
    _head_due_s: float | None = None  # by when a head must have come; None: there is a request
    _head_timer: asyncio.TimerHandle | None = (
        None  # looks whether that is over; never far ahead, so that it need not be set anew
    )
    _is_stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        self._watch = ReadWatch(transport, self.stall_timeout_s, self._drop)
        self._direct = transport
        if transport.get_extra_info("sslcontext") is not None:
            transport.set_write_buffer_limits(high=TLS_BUFFER_BYTES)
        joiner = HeadJoiner(transport, self._watch)
        super().connection_made(cast("asyncio.Transport", joiner))
        self._idle = waiting_at(self.server_state)
        self._expect_head()

    def on_message_begin(self) -> None:
        """Give the head its time."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """From here on the request's own deadline counts."""
        self._head_came()
        scope = cast("Scope", self.scope)
        scope["extensions"] = extensions = {}
        super().on_headers_complete()
        extensions[_WRITER] = Writer(self, self._direct)
        if self._is_stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        """Wait for the next request. uvicorn's own timer ends with the first byte that comes, be it an empty line."""
        super().on_response_complete()
        if not self._is_answering():  # no pipelined request has begun
            self._idle[self] = self.loop.time()
            if self._head_due_s is None:  # no part of a head has come
                self._expect_head_within(self.timeout_keep_alive + HEAD_TIMEOUT_S)

    def shutdown(self) -> None:
        """Serve no further request than the one that is under way, or is on its way now."""
        self._is_stopping = True
        if self._is_answering():
            super().shutdown()
        else:
            self.loop.call_later(LAST_REQUEST_S, self._close_unless_answering)

    def pause_writing(self) -> None:
        """The client is slow."""
        super().pause_writing()
        self._watch.start()

    def resume_writing(self) -> None:
        """It has read; the last bytes of a connection that is closing nobody will write on, so they stay watched."""
        if not self.transport.is_closing():
            self._watch.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """End it."""
        self._watch.stop()
        self._head_came()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().connection_lost(exc)
        if self.answering is not None:
            self.answering.lost()

    def _expect_head(self) -> None:
        self._head_came()
        if not self._is_answering():
            self._idle[self] = self.loop.time()
        self._expect_head_within(HEAD_TIMEOUT_S)

    def _expect_head_within(self, time_s: float) -> None:
        self._head_due_s = self.loop.time() + time_s
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._look_for_head)

    def _look_for_head(self) -> None:
        """See whether a head is late. No time is set that is nearer than the next look, so each is seen when it is over."""
        self._head_timer = None
        if self._head_due_s is None:
            return
        left_s = self._head_due_s - self.loop.time()
        if left_s > 0:
            self._head_timer = self.loop.call_later(min(left_s, HEAD_TIMEOUT_S), self._look_for_head)
        elif self._is_answering():  # part of a pipelined request has come; it is not read while there is one before it
            self._expect_head()
        else:
            self.transport.close()

    def _close_unless_answering(self) -> None:
        if not self._is_answering():
            self.transport.close()

    def _head_came(self) -> None:
        self._idle.pop(self, None)
        self._head_due_s = None

    def _drop(self) -> None:
        if self.scope is not None:
            self.scope[STALLED] = True  # type: ignore[typeddict-unknown-key]


def waiting_at(server: Any) -> dict[ClientProtocol, float]:
    """Return the connections of a server (its `server_state`) that have no request, and since when; oldest first."""
    return _waiting.setdefault(server, {})


def protocol(config: ProxyConfig) -> type[ClientProtocol]:
    """Return what uvicorn's `http` setting takes."""
    limits = HeadLimits(max_bytes=config.max_header_bytes, max_headers=config.max_headers)
    return type(
        "Protocol", (ClientProtocol,), {"stall_timeout_s": config.client_stall_timeout_s, "head_limits": limits}
    )
