"""Tokens that never come, because the device is lost or hangs, or the runner stops: who waits is told."""

import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from baton.model_runner.tokens.handles import DeviceLostError, TokenTransferError
from baton.model_runner.tokens.lanes import LaneEvent
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.support.fake_device import Run
from tests.support.fake_lane import sampled
from tests.unit.model_runner.tokens.rig import SIZES, SOON_S, Rig


@pytest.fixture
def stuck() -> Iterator[Rig]:
    """A device that never gets on, with a taker."""
    made = Rig(Run.ON_ADVANCE)
    made.transfer.start()
    yield made
    made.device.close()
    made.transfer.stop()


@pytest.mark.parametrize("what", ["fell off the bus", "no such memory"])
def test_a_lost_device_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Not a hang: of the step that was under way, of those behind it, and of all later ones (vLLM #42897). So is what goes wrong on the host."""

    def fail(_flight: object) -> None:
        raise RuntimeError(what)

    handles = [rig.transfer.submit({"ids": sampled(rig.compute, step)}) for step in (1, 2)]
    if what == "no such memory":
        monkeypatch.setattr(rig.transfer, "_copy_out", fail)
    else:
        rig.device.lose(what)

    assert rig.transfer.take() is False

    for handle in handles:
        with pytest.raises(DeviceLostError, match=what) as caught:
            handle.result()
        assert caught.value.__cause__ is not None
    with pytest.raises(DeviceLostError):
        rig.transfer.submit({"ids": sampled(rig.compute, 3)})


def test_a_step_that_waits_for_a_slot_hears_of_a_lost_device(rig: Rig) -> None:
    """At once: no slot is given back any more, and the step watchdog waits 300 s."""
    full = TokenTransfer(rig.lane, SIZES, slots=1)
    full.submit({"ids": sampled(rig.compute, 1)})
    rig.device.lose("fell off the bus")
    loser = threading.Timer(SOON_S, full.take)
    loser.start()

    with pytest.raises(DeviceLostError, match="fell off the bus"):
        full.submit({"ids": sampled(rig.compute, 2)})
    loser.join()


def test_a_taker_that_cannot_start_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose device is gone already: readers are told, and do not wait for the watchdog."""

    def fail() -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(rig.lane, "adopt_thread", fail)
    handle = rig.transfer.submit({"ids": sampled(rig.compute, 1)})

    rig.transfer.start()

    with pytest.raises(DeviceLostError, match="no such device"):
        handle.result()


def test_a_step_that_is_issued_as_the_device_goes_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has found no error yet, and comes too late to be among those that are told of it."""
    record = rig.lane.record

    def record_and_lose(event: LaneEvent) -> None:
        record(event)
        rig.device.lose("gone")
        rig.transfer.take()

    rig.transfer.submit({"ids": sampled(rig.compute, 1)})
    monkeypatch.setattr(rig.lane, "record", record_and_lose)

    handle = rig.transfer.submit({"ids": sampled(rig.compute, 2)})

    with pytest.raises(DeviceLostError, match="gone"):
        handle.result()


def test_what_a_device_that_hangs_may_still_read_is_kept(stuck: Rig) -> None:
    """It may go on one day, when another tensor would have the memory; that of steps behind the one it hangs in too."""
    first, second = torch.ones(1, 1), torch.ones(1, 1)
    sources = weakref.ref(first), weakref.ref(second)
    handles = [stuck.transfer.submit({"ids": first}), stuck.transfer.submit({"ids": second})]
    del first, second
    stuck.transfer._break(TokenTransferError("the runner has stopped"))

    for handle in handles:
        with pytest.raises(TokenTransferError):
            handle.result()

    assert None not in [source() for source in sources]


def test_a_step_that_comes_as_the_runner_stops_is_not_taken(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readers have been told that it does not come; its slot is never used again."""
    handle = rig.transfer.submit({"ids": sampled(rig.compute, 1)})
    monkeypatch.setattr(rig.transfer._flights[0].slot.event, "synchronize", rig.transfer.stop)

    assert rig.transfer.take() is False

    with pytest.raises(TokenTransferError) as stopped:
        handle.result()
    assert not isinstance(stopped.value, DeviceLostError)
    assert rig.transfer.slots == (1, 2)


def test_stopping_waits_for_the_taker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """When `stop` returns, nothing of this runner uses the device any more."""
    ended: list[bool] = []
    monkeypatch.setattr(rig.lane, "adopt_thread", lambda: ended.append(threading.Event().wait(SOON_S)))
    rig.transfer.start()

    rig.transfer.stop()

    assert ended


def test_stopping_is_bounded_and_tells_who_waits(stuck: Rig) -> None:
    """A runner can stop although its device hangs."""
    stuck.transfer.submit({"ids": sampled(stuck.compute, 1)})
    stuck.device.lose()
    stuck.transfer.stop()
    stuck.transfer.stop()

    with pytest.raises(TokenTransferError):
        stuck.transfer.submit({"ids": sampled(stuck.compute, 2)})
