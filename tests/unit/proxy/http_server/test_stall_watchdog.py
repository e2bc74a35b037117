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


async def test_a_client_that_reads_nothing_is_dropped_once() -> None:
    """The callback is told before the connection is cut."""
    transport = Transport(unread_bytes=100)
    made, dropped = watch(transport)
    made.start()
    made.start()
    await asyncio.sleep(5 * TIMEOUT_S)

    assert transport.aborted
    assert dropped == [False]


@pytest.mark.parametrize("reads", ["a little", "everything"])
async def test_a_client_that_reads_is_not(reads: str) -> None:
    """One byte each time will do."""
    transport = Transport(unread_bytes=100)
    made, _ = watch(transport)
    made.start()
    for _ in range(8):
        transport.unread_bytes -= 1 if reads == "a little" else transport.unread_bytes
        await asyncio.sleep(TIMEOUT_S / 2)
    still_there = not transport.aborted
    made.stop()

    assert still_there


async def test_a_watch_that_was_stopped_drops_no_client() -> None:
    """The client has read enough for us to write on."""
    transport = Transport(unread_bytes=100)
    made, _ = watch(transport)
    made.start()
    made.stop()
    made.stop()
    await asyncio.sleep(3 * TIMEOUT_S)

    assert not transport.aborted
