"""When a client that does not read is dropped."""

import asyncio
import fcntl
import sys
import termios
from typing import cast
from unittest.mock import Mock

import pytest

from baton.proxy.http_server.stall_watchdog import StallWatchdog
from tests.support.fake_transport import Transport

TIMEOUT_S = 0.05


def watch(transport: Transport) -> tuple[StallWatchdog, list[bool]]:
    """Watch a transport; the list gets what was known of it when its client was dropped."""
    dropped: list[bool] = []
    made = StallWatchdog(
        cast("asyncio.WriteTransport", transport), TIMEOUT_S, lambda: dropped.append(transport.aborted)
    )
    return made, dropped


@pytest.mark.parametrize(
    ("reads", "stops", "told"),
    [
        (0, False, [False]),  # once, before the connection is cut
        (1, False, []),  # a byte each time will do
        (100, False, []),
        (0, True, []),  # the client has read enough for us to write on
    ],
)
async def test_a_client_that_reads_nothing_is_dropped(reads: int, told: list[bool], *, stops: bool) -> None:
    transport = Transport(unread_bytes=100)
    made, dropped = watch(transport)
    made.start()
    made.start()
    for _ in range(2 * stops):
        made.stop()
    for _ in range(8):
        transport.unread_bytes = max(0, transport.unread_bytes - reads)
        await asyncio.sleep(TIMEOUT_S / 2)
    made.stop()

    assert (dropped, transport.aborted) == (told, bool(told))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel cannot be asked")
@pytest.mark.parametrize(
    ("held", "is_dropped"),
    [
        ([900, 800, 800, 700, 700], False),
        ([900, 900], True),
        ([OSError("closed"), OSError("closed")], True),
    ],
)
async def test_what_the_kernel_still_has_is_unread_too(
    monkeypatch: pytest.MonkeyPatch, held: list[int | OSError], *, is_dropped: bool
) -> None:
    """A slow reader may take long until the transport can write on."""
    left = iter(held)
    looked = asyncio.Event()

    def ioctl(descriptor: int, what: int, buffer: bytes) -> bytes:
        assert (descriptor, what, len(buffer)) == (7, termios.TIOCOUTQ, 4)
        found = next(left)
        if left.__length_hint__() == 0:  # type: ignore[attr-defined]
            looked.set()
        if isinstance(found, OSError):
            raise found
        return found.to_bytes(4, sys.byteorder)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    transport = Transport(unread_bytes=100)
    monkeypatch.setattr(transport, "get_extra_info", {"socket": Mock(fileno=lambda: 7)}.get)
    made, dropped = watch(transport)
    made.start()
    await asyncio.wait_for(looked.wait(), 20)
    made.stop()

    assert (dropped, transport.aborted) == ([False] * is_dropped, is_dropped)
