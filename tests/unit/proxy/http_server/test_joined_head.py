"""What is held back, and what happens to it at the end of a connection."""

import asyncio
from typing import Any, cast

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


class Encrypted(Transport):
    """One that asyncio closes by itself when its client says goodbye."""

    closes = 0

    def get_extra_info(self, name: str) -> Any:
        return {"sslcontext": object()}.get(name)

    def close(self) -> None:
        super().close()
        self.closes += 1


@pytest.mark.parametrize("says_goodbye", [True, False])
async def test_an_encrypted_connection_is_closed_once_and_watched(*, says_goodbye: bool) -> None:
    """A second `close` would leave asyncio's transport without its connection; the client may still not read."""
    transport = Encrypted(unread_bytes=1000)
    given = cast("asyncio.Transport", transport)
    joiner = HeadJoiner(given, StallWatchdog(given, 0.02, lambda: None))
    transport.closing = says_goodbye
    joiner.close()
    joiner.close()
    await asyncio.sleep(0.1)

    assert transport.closes == (not says_goodbye)
    assert transport.aborted


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
