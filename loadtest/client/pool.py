"""Connections to one server: kept while they are fresh, made where there is none.

A request is sent once and never again, so every failure is seen. Therefore a connection that was idle for longer than
`IDLE_S` is not used again: servers close idle ones (vLLM after 5 s), and that must not look like a failure.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Mapping
from typing import Final

from baton.loadtest.client.address import Address, Names
from baton.loadtest.client.wire import Connection, Sink

IDLE_S: Final = 2.0


class Client:
    """Asks one server."""

    def __init__(self, address: Address, headers: Mapping[str, str], timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._idle: list[Connection] = []  # the latest one last
        self._names = Names(address)
        self._tls = ssl.create_default_context() if address.tls else None
        lines = {"Host": address.authority, "Accept": "*/*", "User-Agent": "baton-loadtest", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")

    async def ask(self, method: str, path: str, body: bytes, sink: Sink) -> None:
        """Send a request and hand its answer to the sink. Raises `TimeoutError`, `OSError` (no connection), or `WireError`."""
        line = f"{method} {self._address.prefix}{path} HTTP/1.1\r\n".encode("latin-1")
        more = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body) if method == "POST" else b""
        async with asyncio.timeout(self._timeout_s):
            connection = self._reuse() or await self._connect()
            await connection.ask(b"".join((line, self._head, more, b"\r\n", body)), sink)
        if connection.reusable:
            self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _reuse(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and time.perf_counter() - connection.idle_since_s <= IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop, name = asyncio.get_running_loop(), self._address.host if self._tls else None
        *others, last = await self._names.addresses()

        async def connect(host: str) -> Connection:
            port = self._address.port
            return (await loop.create_connection(Connection, host, port, ssl=self._tls, server_hostname=name))[1]

        for host in others:
            with contextlib.suppress(OSError):
                return await connect(host)
        return await connect(last)
