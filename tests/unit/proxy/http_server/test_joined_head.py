"""What is held back, and what happens to it at the end of a connection."""

import asyncio
from typing import cast

import pytest

from baton.proxy.http_server.joined_head import HeadJoiner
from baton.proxy.http_server.stall_watchdog import StallWatchdog


class Transport:
    """Keeps what is written, and has some of it unread."""

    def __init__(self, unread_bytes: int) -> None:
        self.written: list[bytes] = []
        self.unread_bytes = unread_bytes
        self.ended = ""
        self.gone = False

    def is_closing(self) -> bool:
        """Whether the client has gone."""
        return self.gone

    def write(self, data: bytes) -> None:
        """Note a write."""
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        """What was not read."""
        return self.unread_bytes

    def get_extra_info(self, _name: str) -> None:
        """No socket."""

    def close(self) -> None:
        """Close once everything was read."""
        self.ended = "closed"

    def abort(self) -> None:
        """Close at once."""
        self.ended = "aborted"


@pytest.mark.parametrize(("unread_bytes", "ended"), [(1, "aborted"), (0, "closed")])
async def test_a_connection_is_not_closing_for_ever(unread_bytes: int, ended: str) -> None:
    """However little is unread, and although nobody was told to pause; what was held back is written first."""
    transport = Transport(unread_bytes)
    given = cast("asyncio.Transport", transport)
    joiner = HeadJoiner(given, StallWatchdog(given, 0.02, lambda: None))
    joiner.write(b"HTTP/1.1 200 OK\r\n\r\n")
    joiner.close()
    await asyncio.sleep(0.1)

    assert transport.written == [b"HTTP/1.1 200 OK\r\n\r\n"]
    assert transport.ended == ended


@pytest.mark.parametrize("held", [True, False])
async def test_nothing_is_written_to_a_client_that_has_gone(*, held: bool) -> None:
    """The event loop raises where asyncio is silent: the request would look like a failure of ours."""
    transport = Transport(0)
    given = cast("asyncio.Transport", transport)
    joiner = HeadJoiner(given, StallWatchdog(given, 0.02, lambda: None))
    if held:
        joiner.write(b"HTTP/1.1 200 OK\r\n\r\n")
    transport.gone = True
    joiner.write(b"body")
    joiner.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await asyncio.sleep(0.01)

    assert transport.written == []
