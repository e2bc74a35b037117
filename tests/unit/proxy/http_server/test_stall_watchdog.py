"""When a client that does not read is dropped."""

import asyncio
from typing import cast

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
