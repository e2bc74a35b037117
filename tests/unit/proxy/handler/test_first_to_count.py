"""Which leg's outcome counts."""

import asyncio
from typing import Any, cast

import pytest

from baton.proxy.errors import FailureKind
from baton.proxy.handler import legs
from baton.proxy.handler.legs import WhileHopeful, first_to_count
from baton.proxy.planning.outcome import (
    DecodeOutcome,
    Opened,
    PrefillDone,
    PrefillFailed,
    PrefillOutcome,
    PrefillRefused,
)

OPENED = Opened(cast("Any", None), b"first")
FAILED = PrefillFailed(FailureKind.CONNECT, "it cannot be reached")
REFUSED = PrefillRefused(cast("Any", None))


class Decode:
    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.was_cut = False

    async def run(self) -> DecodeOutcome:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_cut = True
            raise
        return OPENED


def ending(outcome: PrefillOutcome) -> asyncio.Task[PrefillOutcome]:
    async def run() -> PrefillOutcome:
        return outcome

    return asyncio.create_task(run())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_prefill_leg_that_failed_ends_the_decode_leg() -> None:
    """It would wait in vain; the task itself is not cancelled."""
    decode = Decode()

    assert await first_to_count(decode.run(), WhileHopeful(ending(FAILED))) is FAILED
    assert decode.was_cut
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.parametrize(
    ("ended", "answers", "counts"),
    [
        (PrefillDone(), True, OPENED),  # its KV is on the way
        # The decode node has the same request before it, and may say better what is wrong.
        (REFUSED, True, OPENED),
        (REFUSED, False, REFUSED),
    ],
)
async def test_a_decode_leg_goes_on_behind_a_prefill_leg_that_is_done_and_a_moment_behind_one_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, ended: PrefillOutcome, counts: object, *, answers: bool
) -> None:
    monkeypatch.setattr(legs, "REFUSAL_GRACE_S", 30.0 if answers else 0.01)
    decode = Decode()
    counting = asyncio.create_task(first_to_count(decode.run(), WhileHopeful(ending(ended))))
    await settle()
    if answers:
        decode.may_end.set()

    async with asyncio.timeout(10):
        assert await counting is counts


@pytest.mark.parametrize("outcome", [FAILED, REFUSED, PrefillDone(is_whole=True)], ids=lambda each: type(each).__name__)
async def test_a_prefill_leg_that_ends_with_the_decode_leg_cancels_nothing_after_it(
    monkeypatch: pytest.MonkeyPatch, outcome: PrefillOutcome
) -> None:
    """What both nodes have sent came in one turn of the event loop, the prefill node's first."""
    monkeypatch.setattr(legs, "REFUSAL_GRACE_S", 0.01)
    loop = asyncio.get_running_loop()
    prefill_sent, decode_sent = loop.create_future(), loop.create_future()

    async def prefill() -> PrefillOutcome:
        await prefill_sent
        return outcome

    async def decode() -> DecodeOutcome:
        await decode_sent
        return OPENED

    async def request() -> None:
        assert await first_to_count(decode(), WhileHopeful(leg)) is OPENED
        await asyncio.sleep(0.05)  # the answer is relayed

    leg, asked = asyncio.create_task(prefill()), asyncio.create_task(request())
    await settle()
    prefill_sent.set_result(None)
    decode_sent.set_result(None)

    await asked


@pytest.mark.parametrize("when", ["refused before", "in the same turn", "later"])
async def test_a_prefill_leg_that_fails_once_the_decode_node_makes_tokens_ends_nothing(when: str) -> None:
    """Also where the decode leg was about to end, since the prefill node had refused before."""
    outcome = REFUSED if when == "refused before" else FAILED
    decode, may_fail = Decode(), asyncio.Event()

    async def prefill() -> PrefillOutcome:
        await may_fail.wait()
        return outcome

    leg = asyncio.create_task(prefill())
    hopeful = WhileHopeful(leg)
    if when == "in the same turn":
        leg.add_done_callback(lambda _: hopeful.settle())  # called just before the leg's failure is seen
        may_fail.set()
    counting = asyncio.create_task(first_to_count(decode.run(), hopeful))
    if when == "refused before":
        may_fail.set()
    await settle()
    hopeful.settle()
    may_fail.set()
    await settle()
    timer = hopeful._timer
    assert (timer.cancelled() if timer else None) == (True if when == "refused before" else None)
    decode.may_end.set()

    assert await counting is OPENED


async def test_who_is_cancelled_while_the_prefill_leg_fails_stays_cancelled() -> None:
    """The client left in the same moment: that is not taken for the end of the leg."""
    decode, may_fail = Decode(), asyncio.Event()

    async def fail() -> PrefillOutcome:
        await may_fail.wait()
        return FAILED

    counting = asyncio.create_task(first_to_count(decode.run(), WhileHopeful(asyncio.create_task(fail()))))
    await settle()
    may_fail.set()
    await asyncio.sleep(0)  # the leg has ended, and its waiter has not run yet
    counting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await counting


async def test_a_fault_of_ours_in_the_prefill_leg_is_raised() -> None:
    """It is not waited for what cannot come."""

    async def fail() -> PrefillOutcome:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await first_to_count(Decode().run(), WhileHopeful(asyncio.create_task(fail())))
