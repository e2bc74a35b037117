"""Connections to all nodes: the newest idle one first, each closed when it has idled for a while. All O(1)."""

import asyncio
import socket
import ssl
import sys
import time
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Final

from baton.proxy.http.address import Address
from baton.proxy.http.connection import Connection

# uvicorn, in front of every vLLM, closes a connection that idled for 5 s: let go a little earlier.
KEEP_ALIVE_S: Final = 4.0
TCP_RTO_MAX_MS: Final = 44  # Linux 6.15; Python has no name for it yet
# At least, while packets are lost: else only after the length of the outage once more.
RETRANSMIT_EVERY_MS: Final = 1_000
UNACKNOWLEDGED_MS: Final = 120_000  # then the connection is lost


class Pool:
    """Makes connections, and keeps those that no request uses."""

    def __init__(self) -> None:
        self._idle: dict[Address, dict[Connection, None]] = {}  # the newest last
        self._open: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, address: Address) -> Connection | None:
        """Return an idle connection, which no other request has then."""
        idle = self._idle.get(address)
        while idle:
            connection, _ = idle.popitem()
            if connection.is_open:
                return connection
        return None

    async def connect(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        tls = self._tls if address.tls else None
        name = address.host if address.tls else None
        made = partial(Connection, partial(self._give, address), self._open.discard)
        transport, connection = await loop.create_connection(
            made, address.host, address.port, ssl=tls, server_hostname=name
        )
        _retransmit_often(transport.get_extra_info("socket"))
        self._open.add(connection)
        return connection

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        for connection in list(self._open):
            connection.abandon()

    def _give(self, address: Address, connection: Connection) -> None:
        connection.idle_since_s = time.monotonic()
        self._idle.setdefault(address, {})[connection] = None
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._close_old)

    def _close_old(self) -> None:
        """Close what has idled for long; come again while anything idles."""
        self._sweep = None
        now_s = time.monotonic()
        for address, idle in list(self._idle.items()):
            while idle:
                oldest = next(iter(idle))
                if oldest.is_open and now_s - oldest.idle_since_s < KEEP_ALIVE_S:
                    break
                del idle[oldest]
                oldest.abandon()
            if not idle:
                del self._idle[address]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_S / 4, self._close_old)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _retransmit_often(sock: Any) -> None:
    """Have a node hear of a request, or of its end, soon after an outage of the network has ended.

    A kernel that cannot do it goes on as TCP does: after an outage it may be silent for as long again.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RETRANSMIT_EVERY_MS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
