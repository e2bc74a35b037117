"""What requests claim of the connections that there may be."""

import asyncio

import pytest

from baton.proxy.errors import NoDescriptorsError
from baton.proxy.http_server.connection_budget import ConnectionBudget


def claims(most: int) -> tuple[ConnectionBudget, list[None]]:
    told: list[None] = []
    return ConnectionBudget(lambda: most, lambda: told.append(None)), told


def test_a_request_too_many_is_refused_and_told() -> None:
    all_, told = claims(5)
    with all_.claim(), all_.claim():
        with pytest.raises(NoDescriptorsError), all_.claim():
            pass
        assert (all_.requests, all_.connections, len(told)) == (2, 4, 1)
    assert (all_.requests, all_.connections) == (0, 0)


def test_streams_make_room_for_others() -> None:
    """Each needs one connection from then on; said twice, it counts once."""
    all_, _ = claims(4)
    first, second, third = all_.claim(), all_.claim(), all_.claim()
    with first, second:
        first.streams()
        first.streams()
        with pytest.raises(NoDescriptorsError), third:
            pass
        second.streams()
        with third:
            assert all_.connections == 4
    assert (all_.requests, all_.connections) == (0, 0)


async def test_a_stream_that_broke_waits_until_there_is_a_connection_for_its_other_leg() -> None:
    """Those that wait get it in their order, before any new request; one that has never streamed has both already."""
    all_, _ = claims(4)
    first, second, third = all_.claim(), all_.claim(), all_.claim()
    with first, second:
        await first.both_again()
        assert all_.connections == 4
        first.streams()
        second.streams()
        with third:
            waiting = [asyncio.create_task(claim.both_again()) for claim in (first, second)]
            await asyncio.sleep(0)
            assert not waiting[0].done()
            third.streams()
            await waiting[0]
            assert not waiting[1].done()
        await waiting[1]
        assert all_.connections == 4
    assert all_.connections == 0


async def test_a_stream_that_broke_has_its_other_leg_at_once_where_there_is_a_connection() -> None:
    """One, which it gives back at its end."""
    all_, _ = claims(2)
    claim = all_.claim()
    with claim:
        claim.streams()
        await claim.both_again()
        await claim.both_again()
        assert all_.connections == 2
    assert all_.connections == 0


def test_a_claim_that_has_ended_gives_nothing_back() -> None:
    all_, _ = claims(4)
    with (claim := all_.claim()):
        pass
    claim.streams()

    assert all_.connections == 0


async def test_a_claim_that_gives_up_waiting_takes_nothing() -> None:
    """Cancelled before its turn, or in the moment of it."""
    all_, _ = claims(2)
    first, second = all_.claim(), all_.claim()
    with first:
        first.streams()
        with pytest.raises(NoDescriptorsError), second:
            pass
        all_.connections += 1  # another claim's
        waiting = [asyncio.create_task(first.both_again()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (all_.connections, waiting[1].done()) == (2, False)
        all_.give_back(1)
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert all_.connections == 1
    assert (all_.requests, all_.connections) == (0, 0)
