"""The client of the nodes: requests go out on kept connections, and every failure becomes an `UpstreamError`.

A kept connection that the node has closed (a restart, an idle time-out) is no failure: a request that received
nothing is sent once more, on a new connection.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.address import Address, address_of
from baton.proxy.http.connection import Connection, UnusedError
from baton.proxy.http.pool import Pool
from baton.proxy.http.response import UpstreamResponse

_OWN: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS))


class Upstream:
    """Connections to all nodes."""

    def __init__(self, *, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self.pool = Pool()

    async def stop(self) -> None:
        """Close everything; open answers break."""
        self.pool.close()

    def send(self, base_url: str, target: str, headers: bytes, body: bytes) -> "PendingRequest":
        """Send a request, at once if there is a connection to the node; `headers` are complete lines, to which length and host are added."""
        address = address_of(base_url)
        length = b"content-length: %d\r\n" % len(body)
        return PendingRequest(self, address, b"".join((_line("POST", address, target), headers, length, b"\r\n", body)))

    async def post(self, base_url: str, target: str, headers: bytes, body: bytes) -> UpstreamResponse:
        """Send a request, as `send` does, and wait for the head of its answer."""
        return await self.send(base_url, target, headers, body).answer()

    @asynccontextmanager
    async def get(
        self, base_url: str, target: str, headers: bytes = b"", *, timeout_s: float
    ) -> AsyncIterator[UpstreamResponse]:
        """Ask a node something small."""
        address = address_of(base_url)
        answer: UpstreamResponse | None = None
        try:
            async with asyncio.timeout(timeout_s):
                request = b"".join((_line("GET", address, target), headers, b"\r\n"))
                answer = await PendingRequest(self, address, request).answer()
                yield answer
        except TimeoutError as exc:
            raise UpstreamError(FailureKind.TIMEOUT, "it did not answer in time") from exc
        finally:
            if answer is not None:
                answer.close()

    async def connect(self, address: Address) -> Connection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self.pool.connect(address)
        except TimeoutError as exc:
            raise UpstreamError(FailureKind.TIMEOUT, "it cannot be reached in time") from exc
        except OSError as exc:
            if exc.errno in _OWN:
                raise UpstreamError(FailureKind.OWN, "the proxy has too many connections") from exc
            raise UpstreamError(FailureKind.CONNECT, "it cannot be reached") from exc


class PendingRequest:
    """A request on its way: written already, if a connection was kept. `close()` it unless its answer is waited for."""

    __slots__ = ("_address", "_connection", "_head", "_request", "_upstream", "at_s")

    def __init__(self, upstream: Upstream, address: Address, request: bytes) -> None:
        self._upstream = upstream
        self._address = address
        self._request = request
        self._head: asyncio.Future[UpstreamResponse] | None = None
        self.at_s = perf_counter()
        self._connection = upstream.pool.take(address)
        if self._connection is not None:
            self._head = self._connection.send(request)

    async def answer(self) -> UpstreamResponse:
        try:
            if self._head is not None:
                try:
                    return await self._head
                except UnusedError:
                    pass
            self._connection = await self._upstream.connect(self._address)
            self._head = self._connection.send(self._request)
            return await self._head
        except asyncio.CancelledError:
            self.close()
            raise
        except UnusedError as exc:
            raise UpstreamError(FailureKind.DISCONNECT, "its connection ended before its answer did") from exc

    def close(self) -> None:
        """Give it up; nothing if its answer has been read."""
        if self._connection is not None and self._head is not None:
            self._connection.forget(self._head)


def _line(method: str, address: Address, target: str) -> bytes:
    return f"{method} {address.prefix}{target} HTTP/1.1\r\nhost: {address.authority}\r\n".encode("ascii")
