"""Clients that do not read. What is sent to one is bounded by uvicorn's flow control; how long it may wait, here.

Above 64 KiB of unread data the transport pauses whoever writes: so the proxy holds these, one chunk more, and two chunks
of the node's, whose own connection is not read any further. The same watch ends a connection that is closing and whose
last bytes nobody takes.
"""

import asyncio
from collections.abc import Callable
from typing import Final

STALLED: Final = "baton.stalled"  # in the scope of a request whose client was dropped


class ReadWatch:
    """Sees whether a transport's unread bytes become fewer."""

    def __init__(self, transport: asyncio.WriteTransport, timeout_s: float, dropped: Callable[[], None]) -> None:
        """`dropped` is called before a connection is cut."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._dropped = dropped
        self._timer: asyncio.TimerHandle | None = None
        self._left_bytes = 0

    def start(self) -> None:
        """Begin to watch, if it is not done already."""
        if self._timer is None:
            self._again()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self._left_bytes = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_bytes = self._transport.get_write_buffer_size()
        if now_bytes and now_bytes < self._left_bytes:
            self._again()
        elif now_bytes:
            self._dropped()
            self._transport.abort()
