"""A transport for uvicorn's HTTP protocol that writes a response's head and its first body bytes together.

uvicorn writes the head by itself, and asyncio and uvloop (0.23) both pass a write on at once, so that with TCP_NODELAY
the head is a segment of its own and the client wakes twice for the first token.
"""

import asyncio
from typing import Any, Final

from baton.proxy.http_server.stall_watchdog import StallWatchdog

_HEAD: Final = b"HTTP/1.1 "
_INTERIM: Final = b"HTTP/1.1 1"  # `100 Continue` must not wait: the client sends nothing until it comes


class HeadJoiner:
    """A transport that holds a head back until the next write, or the loop's next turn."""

    def __init__(self, transport: asyncio.Transport, watch: StallWatchdog) -> None:
        self._transport = transport
        self._watch = watch
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
        self._transport.close()
        if self._transport.get_write_buffer_size() or self._transport.get_extra_info("sslcontext") is not None:
            self._watch.start()

    def flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
