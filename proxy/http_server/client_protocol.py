"""Client connections with idle, header-read and write-stall time-outs."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.http_server.head_limits import HeadLimits
from baton.proxy.http_server.head_protocol import HeadProtocol
from baton.proxy.http_server.stall_watchdog import STALLED, StallWatchdog

TLS_BUFFER_BYTES: Final = 64 * 1024  # as without TLS, where the usual bound is 512 KiB
LAST_REQUEST_S: Final = 0.2  # likewise, when the proxy stops
_HEAD: Final = b"HTTP/1.1 "
_INTERIM: Final = b"HTTP/1.1 1"  # `100 Continue` must not wait: the client sends nothing until it comes
_LAST_CHUNK: Final = b"0\r\n\r\n"
_WRITER: Final = "baton.writer"  # among the extensions of a request's scope


class Writer:
    """Writes a stream to its client's transport without ASGI's `send`, which would cost more per chunk than the write itself.

    It keeps uvicorn's own state of the request up to date, so that everything else goes on as after `send`.
    """

    __slots__ = ("_cycle", "_flow", "_gone", "_protocol", "_transport", "has_end")

    def __init__(self, protocol: "ClientProtocol", transport: asyncio.WriteTransport) -> None:
        """The request is the one that the protocol has just read the head of; `transport` is the protocol's, bare."""
        self._protocol = protocol
        self._cycle = protocol.cycle
        self._flow = protocol.flow
        self._transport = transport
        self._gone: Callable[[], None] | None = None
        self.has_end = False  # the client has been sent all of it

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
        return self._write(b"".join(lines), ends=ends)

    def write(self, chunk: bytes, *, ends: bool = False) -> bool:
        """Write a chunk, which is not empty, with the response's last bytes if it `ends`; return whether the client keeps up.

        The connection's next request waits until the task of this one has called `end`.
        """
        return self._write(_chunk(chunk), ends=ends)

    def end(self) -> None:
        """End a chunked response, in its task; the connection waits for the next request, or is closed."""
        cycle = self._cycle
        if cycle.disconnected or cycle.response_complete:
            return
        if not self.has_end:
            self._write(b"", ends=True)
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    async def wait_writable(self) -> None:
        """Wait until the client has read enough, or left."""
        await self._flow.drain()

    def _write(self, data: bytes, *, ends: bool) -> bool:
        self.has_end = ends
        if not self._transport.is_closing():  # uvloop would raise
            self._transport.write(data + _LAST_CHUNK if ends else data)
        return not self._flow.write_paused


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def writer_of(scope: Scope) -> Writer:
    writer: Writer = scope["extensions"][_WRITER]
    return writer


def forget_writer(scope: Scope) -> None:
    """Part a request that has ended from its writer, which refers to it: else its body stays until a full garbage collection."""
    scope.get("extensions", {}).pop(_WRITER, None)


class HeadJoiner:
    """A transport that holds a response's head back until the next write, or the loop's next turn.

    uvicorn writes the head by itself, and asyncio and uvloop (0.23) both pass a write on at once, so that with
    TCP_NODELAY the head is a segment of its own and the client wakes twice for the first token.
    """

    def __init__(self, transport: asyncio.Transport, watch: StallWatchdog) -> None:
        self._transport = transport
        self._watch = watch
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write, or hold, what uvicorn hands over; nothing if the client has gone, which uvloop would call an error."""
        if self._transport.is_closing():
            self._head = b""
            return
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD) and not data.startswith(_INTERIM):
            self._head = data
            asyncio.get_running_loop().call_soon(self.flush)  # a response without a body has no next write
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close after what is held was written, and read, or not read for too long; with TLS the client has to say goodbye."""
        self.flush()
        # asyncio's TLS transport forgets its connection at a second `close`, and most of its methods then raise. The first may be its
        # own, when the client says goodbye: what is left of an answer is then watched by nothing else.
        if not (self._is_encrypted and self._transport.is_closing()):
            self._transport.close()
        if self._is_encrypted or self._transport.get_write_buffer_size():
            self._watch.start()

    def flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ClientProtocol(HeadProtocol):
    """uvicorn's HTTP protocol, bounded, and with a response's head and first bytes in one write."""

    stall_timeout_s = 60.0
    _watch: StallWatchdog
    _direct: asyncio.Transport
    answering: Writer | None = None  # of the request that is being answered
    _is_stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._watch = StallWatchdog(transport, self.stall_timeout_s, self._drop)
        self._direct = transport
        if transport.get_extra_info("sslcontext") is not None:
            transport.set_write_buffer_limits(high=TLS_BUFFER_BYTES)
        joiner = HeadJoiner(transport, self._watch)
        super().connection_made(cast("asyncio.Transport", joiner))

    def on_headers_complete(self) -> None:
        """Let the request write to its client."""
        scope = cast("Scope", self.scope)
        scope["extensions"] = extensions = {}
        super().on_headers_complete()
        extensions[_WRITER] = Writer(self, self._direct)
        if self._is_stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Serve no further request than the one that is under way, or is on its way now."""
        self._is_stopping = True
        if self._is_answering():
            super().shutdown()
        else:
            self.loop.call_later(LAST_REQUEST_S, self._close_unless_answering)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch.start()

    def resume_writing(self) -> None:
        """It has read; nothing is written after the last bytes of a connection that is closing, so they stay watched."""
        if not self.transport.is_closing():
            self._watch.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch.stop()
        if self.answering is not None:
            self.answering.lost()

    def _close_unless_answering(self) -> None:
        if not self._is_answering():
            self.transport.close()

    def _drop(self) -> None:
        if self.scope is not None:
            self.scope[STALLED] = True  # type: ignore[typeddict-unknown-key]


def protocol(config: ProxyConfig) -> type[ClientProtocol]:
    """Return what uvicorn's `http` setting takes."""
    limits = HeadLimits(max_bytes=config.max_header_bytes, max_headers=config.max_headers)
    return type(
        "Protocol", (ClientProtocol,), {"stall_timeout_s": config.client_stall_timeout_s, "head_limits": limits}
    )
