"""Clients that do not read. What is sent to one is bounded by uvicorn's flow control; how long it may wait, here.

Above 64 KiB of unread data the transport pauses its writer: so the proxy holds these, one chunk more, and two chunks
of the node's, whose own connection is not read any further. The same watch ends a connection that is closing and whose
last bytes the client does not take.

What the kernel still has counts as unread: it lets a transport write on only when a good part of its several MiB is
free, which a slow reader may take long to read.
"""

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from typing import Final

STALLED: Final = "baton.stalled"  # in the scope of a request whose client was dropped


class StallWatchdog:
    """Sees whether a transport's unread bytes become fewer."""

    def __init__(self, transport: asyncio.WriteTransport, timeout_s: float, dropped: Callable[[], None]) -> None:
        """`dropped` is called before a connection is cut."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._dropped = dropped
        self._timer: asyncio.TimerHandle | None = None
        self._left_bytes = 0

    def start(self) -> None:
        if self._timer is None:
            self._again()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self._left_bytes = self._unread_bytes()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._transport.get_write_buffer_size() and not self._transport.is_closing():
            return
        if self._unread_bytes() < self._left_bytes:
            self._again()
        else:
            self._dropped()
            self._transport.abort()

    def _unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + _unacknowledged_bytes(self._transport)


def _unacknowledged_bytes(transport: asyncio.WriteTransport) -> int:
    """How much the kernel holds for the peer; 0 where it cannot be asked."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:  # it is closed
        return 0
