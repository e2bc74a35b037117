"""The client of the nodes: requests go out on kept connections, and every failure becomes an `UpstreamError`.

A kept connection that the node had closed meanwhile (a restart, an idle time-out) is no failure: a request that received
nothing is sent once more, on a new connection.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from proxy.errors import Kind, UpstreamError
from proxy.http1.address import Address, address_of
from proxy.http1.answer import Answer
from proxy.http1.connection import Connection, UnusedError
from proxy.http1.pool import Pool

_OWN: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS))


class Upstream:
    """Connections to all nodes."""

    def __init__(self, *, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._pool = Pool()

    async def stop(self) -> None:
        """Close everything; open answers break."""
        self._pool.close()

    async def post(self, base_url: str, target: str, headers: bytes, body: bytes) -> Answer:
        """Send a request and wait for the head of its answer.

        Args:
            base_url: of the node.
            target: path and query.
            headers: complete lines; length and host are added.
            body: is sent as it is.

        Raises:
            UpstreamError: no head arrived.
        """
        address = address_of(base_url)
        length = b"content-length: %d\r\n" % len(body)
        return await self._ask(address, b"".join((_line("POST", address, target), headers, length, b"\r\n", body)))

    @asynccontextmanager
    async def get(self, base_url: str, target: str, headers: bytes = b"", *, timeout_s: float) -> AsyncIterator[Answer]:
        """Ask a node something small.

        Raises:
            UpstreamError: no head arrived in time, or what is read in the block breaks.
        """
        address = address_of(base_url)
        answer: Answer | None = None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._ask(address, b"".join((_line("GET", address, target), headers, b"\r\n")))
                yield answer
        except TimeoutError as exc:
            raise UpstreamError(Kind.TIMEOUT, "it did not answer in time") from exc
        finally:
            if answer is not None:
                answer.close()

    async def _ask(self, address: Address, request: bytes) -> Answer:
        kept = self._pool.take(address)
        if kept is not None:
            try:
                return await kept.ask(request)
            except UnusedError:
                pass
        try:
            return await (await self._connect(address)).ask(request)
        except UnusedError as exc:
            raise UpstreamError(Kind.DISCONNECT, "its connection ended before its answer did") from exc

    async def _connect(self, address: Address) -> Connection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._pool.connect(address)
        except OSError as exc:  # TimeoutError is one
            if exc.errno in _OWN:
                raise UpstreamError(Kind.OWN, "the proxy has too many connections") from exc
            raise UpstreamError(Kind.CONNECT, "it cannot be reached") from exc


def _line(method: str, address: Address, target: str) -> bytes:
    return f"{method} {address.prefix}{target} HTTP/1.1\r\nhost: {address.authority}\r\n".encode("ascii")
