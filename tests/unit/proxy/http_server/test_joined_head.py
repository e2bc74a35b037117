"""What is held back, and what happens to it at the end of a connection."""

import asyncio
from typing import cast

import pytest

from baton.proxy.http_server.client_protocol import HeadJoiner
from baton.proxy.http_server.stall_watchdog import StallWatchdog
from tests.support.fake_transport import Transport


class ReadAtOnce(Transport):
    def get_write_buffer_size(self) -> int:
        return 0


@pytest.mark.parametrize(("transport", "is_cut"), [(Transport(), True), (ReadAtOnce(), False)])
async def test_a_connection_is_not_closing_for_ever(transport: Transport, *, is_cut: bool) -> None:
    """However little is unread, and although the writer was not told to pause; what was held back is written first."""
    given = cast("asyncio.Transport", transport)
    joiner = HeadJoiner(given, StallWatchdog(given, 0.02, lambda: None))
    joiner.write(b"HTTP/1.1 200 OK\r\n\r\n")
    joiner.close()
    await asyncio.sleep(0.1)

    assert transport.written == b"HTTP/1.1 200 OK\r\n\r\n"
    assert transport.closing
    assert transport.aborted == is_cut


@pytest.mark.parametrize("held", [True, False])
async def test_nothing_is_written_to_a_client_that_has_gone(*, held: bool) -> None:
    """The event loop raises where asyncio is silent: the request would look like a failure of ours."""
    transport = Transport()
    given = cast("asyncio.Transport", transport)
    joiner = HeadJoiner(given, StallWatchdog(given, 0.02, lambda: None))
    if held:
        joiner.write(b"HTTP/1.1 200 OK\r\n\r\n")
    transport.closing = True
    joiner.write(b"body")
    joiner.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await asyncio.sleep(0.01)

    assert transport.written == b""
