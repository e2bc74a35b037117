"""A node's answer as it arrives: kept until it is read, or handed to a sink at once.

A sink is called from the event loop's own callback, so that a chunk passes through the proxy without waking a task.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.headers import RawHeaderList, find

HIGH_WATER_BYTES: Final = 1 << 16  # of an answer, unread; the node is not read any further then
END_OF_EVENT: Final = b"\n\n"
Sink = Callable[[bytes, bool], bool]  # takes bytes and whether they end the answer; returns whether there may be more


class Source(Protocol):
    """The connection that an answer comes from."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abandon(self) -> None: ...


class UpstreamResponse:
    """A response whose head has arrived. `close()` it unless it was read to its end."""

    __slots__ = (
        *("status", "headers", "is_stream"),
        *("_source", "_parts", "_size_bytes", "_ended", "_error", "_refusal", "_paused", "_sink", "_waiter"),
    )

    def __init__(self, source: Source, status: int, headers: RawHeaderList) -> None:
        """`headers` have lower-case names."""
        self.status = status
        self.headers = headers
        kind = find(headers, b"content-type") or b""
        self.is_stream = kind.partition(b";")[0].strip().lower() == b"text/event-stream"
        self._source = source
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._ended = False
        self._error: UpstreamError | None = None
        self._refusal: Exception | None = None  # of the sink
        self._paused = False
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has come to a good end, and all of it has been read."""
        return self._ended and self._error is None and not self._parts

    async def read_some(self) -> bytes:
        """Return what has arrived, at least one byte; nothing at the end."""
        while not self._parts:
            if self._error is not None:
                raise self._failure()
            if self._ended:
                return b""
            await self._wait()
        return self._taken()

    async def read_event(self) -> bytes:
        """Return what has arrived, at least one whole event of a stream; nothing at the end."""
        data = await self.read_some()
        while data and END_OF_EVENT not in data:
            more = await self.read_some()
            if not more:
                raise UpstreamError(FailureKind.DISCONNECT, "its connection ended before its answer did")
            data += more
        return data

    async def read_all(self) -> bytes:
        read: list[bytes] = []
        while part := await self.read_some():
            read.append(part)
        return read[0] if len(read) == 1 else b"".join(read)

    async def pour(self, sink: Sink, wait_writable: Callable[[], Awaitable[None]]) -> None:
        """Hand everything that comes to a sink, until the end.

        The sink is given at least one byte at a time, and whether it is the last. While it says False, the node is not read; `wait_writable` waits until it takes more.

        Raises:
            UpstreamError: the connection ended before the answer did; what came before has been handed on.
            Exception: what the sink raised, which is given nothing more.
        """
        self._sink = sink
        try:
            if self._parts:
                self.arrived(self._taken(), is_last=self._ended and self._error is None)
            while self._refusal is None and not self._ended:
                if self._paused:
                    await wait_writable()
                    self._read_on()
                else:
                    await self._wait()
        finally:
            self._sink = None
        if self._refusal is not None:
            raise self._refusal
        if self._error is not None:
            raise self._failure()

    def close(self) -> None:
        """Close the connection at once, which tells the node to stop; nothing if the body was read to its end."""
        if not self._ended:
            self._ended = True
            self._source.abandon()

    # What the connection calls.

    def arrived(self, data: bytes, *, is_last: bool) -> None:
        if self._sink is not None:
            try:
                if self._sink(data, is_last):
                    return
            except Exception as exc:  # noqa: BLE001  # told to the caller of `pour`; this is the event loop's callback
                self._refusal, self._sink = exc, None
            self._pause()
            self._wake()
            return
        self._parts.append(data)
        self._size_bytes += len(data)
        if self._size_bytes > HIGH_WATER_BYTES:
            self._pause()
        self._wake()

    def end(self, error: UpstreamError | None = None) -> None:
        if not self._ended:
            self._read_on()  # the connection is the next request's
            self._ended, self._error = True, error
            self._wake()

    def _failure(self) -> UpstreamError:
        """Return a copy of the error: what is raised refers to frames that refer to this answer."""
        assert self._error is not None
        return UpstreamError(self._error.kind, str(self._error))

    def _taken(self) -> bytes:
        parts, self._parts, self._size_bytes = self._parts, [], 0
        if not self._ended:
            self._read_on()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _pause(self) -> None:
        if not self._paused and not self._ended:
            self._paused = True
            self._source.pause()

    def _read_on(self) -> None:
        if self._paused:
            self._paused = False
            self._source.resume()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
