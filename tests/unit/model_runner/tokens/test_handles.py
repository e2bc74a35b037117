"""Events that are waited for with a bound."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch

from baton.model_runner.tokens.errors import DeviceLostError, TokenTimeoutError, TokenTransferError
from baton.model_runner.tokens.handles import BoundedEvent, EventWatch, Handle
from baton.model_runner.tokens.lanes import StreamLane
from baton.model_runner.tokens.packing import Sizes
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.support.fake_device import FakeDevice, Run
from tests.support.fake_lane import FakeLane, sampled
from tests.support.late_device import LateDevice, LateTorch
from tests.support.virtual_host import RealHost

SOON_S = 0.05
LATE_S = 20.0  # against hanging
TO_HANG_S = 1.0  # whoever has not come back by then hangs


class Rig:
    """A device, and a transfer that makes events."""

    def __init__(self, run: Run, timeout_s: float = LATE_S) -> None:
        self.device = FakeDevice(1, run)
        self.compute = self.device.stream()
        self.lane = FakeLane(self.device, self.compute)
        self.transfer = TokenTransfer(self.lane, Sizes(max_num_seqs=4), timeout_s=timeout_s)

    def recorded(self) -> BoundedEvent:
        """One behind a kernel."""
        event = self.transfer.event()
        self.compute.launch(lambda: None)
        event.record(self.compute)
        return event


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A device that runs what somebody waits for."""
    made = Rig(Run.ON_WAIT)
    yield made
    made.transfer.stop()
    made.device.close()


@pytest.fixture
def stuck() -> Iterator[Rig]:
    """One that never gets on, and short waits."""
    made = Rig(Run.ON_ADVANCE, SOON_S)
    yield made
    made.device.close()
    made.transfer.stop()


def test_an_event_is_waited_for_by_another_thread(rig: Rig) -> None:
    """The model thread never waits for the device itself; what it waited is counted."""
    event = rig.recorded()
    assert not event.query()

    event.synchronize()

    assert event.query()
    assert rig.device.waits == {"token-events": 1}
    assert sum(rig.transfer.counts.snapshot()["histograms"]["wait_s"]["counts"]) == 1


def test_what_has_been_passed_is_not_waited_for(rig: Rig) -> None:
    """Nor what was never recorded: no other thread is asked, none is started."""
    event = rig.recorded()
    rig.compute.synchronize()
    rig.device.waits.clear()

    event.synchronize()
    rig.transfer.event().synchronize()

    assert rig.device.waits.total() == 0
    assert "token-events" not in {thread.name for thread in threading.enumerate()}


def test_an_event_is_recorded_anew_for_every_step(rig: Rig) -> None:
    """And waited for each time."""
    event = rig.transfer.event()
    for step in range(1, 4):
        tokens = sampled(rig.compute, step)
        event.record(rig.compute)
        event.synchronize()
        assert tokens.item() == step


@contextmanager
def without_a_bound() -> Iterator[None]:
    """As the device's own events are waited for."""
    with patch.object(BoundedEvent, "synchronize", lambda event: event._event.synchronize()):
        yield


def wait_in_a_thread(event: BoundedEvent) -> tuple[bool, list[Exception]]:
    """Return whether somebody who waits hangs, and what he got."""
    got: list[Exception] = []

    def wait() -> None:
        try:
            event.synchronize()
        except Exception as exc:  # noqa: BLE001  # looked at by the test
            got.append(exc)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(TO_HANG_S)
    return waiter.is_alive(), got


def test_a_device_that_hangs_is_an_error(stuck: Rig) -> None:
    """Within the bound, and nothing is sent to it any more (vLLM #42897, #52247); without a bound it is a hang."""
    hangs, got = wait_in_a_thread(stuck.recorded())

    assert not hangs
    assert isinstance(got[0], TokenTimeoutError)
    assert "an event of the device did not come within 0.05 s" in str(got[0])
    with pytest.raises(TokenTimeoutError):
        stuck.transfer.submit({"ids": torch.ones(1, 1)})
    with pytest.raises(TokenTimeoutError):
        stuck.recorded().synchronize()
    with without_a_bound():
        assert wait_in_a_thread(stuck.recorded()) == (True, [])


def test_a_lost_device_is_an_error(rig: Rig) -> None:
    """Of whoever waits, and of every step from then on."""
    event = rig.recorded()
    rig.device.lose("fell off the bus")

    with pytest.raises(DeviceLostError, match="fell off the bus"):
        event.synchronize()
    with pytest.raises(DeviceLostError, match="fell off the bus"):
        rig.transfer.submit({"ids": torch.ones(1, 1)})


def test_a_device_whose_events_cannot_be_asked_is_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's own way: any call returns the error of an earlier kernel."""
    event: Any = rig.recorded()

    def fail() -> bool:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(event._event, "query", fail)

    with pytest.raises(DeviceLostError, match="illegal memory access"):
        event.synchronize()


def test_who_waits_for_an_event_hears_at_once_that_tokens_were_lost(stuck: Rig) -> None:
    """Not only when his own bound has passed."""
    patient = TokenTransfer(stuck.lane, Sizes(max_num_seqs=4), timeout_s=LATE_S)
    patient.submit({"ids": torch.ones(1, 1)})
    event = patient.event()
    event.record(stuck.compute)
    stopper = threading.Timer(SOON_S, patient.stop)
    stopper.start()

    with pytest.raises(TokenTransferError, match="the runner has stopped"):
        event.synchronize()
    stuck.device.lose()  # so that its threads end
    stopper.join()


def test_late_device_is_waited_for_by_a_thread_that_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device 1: a new thread's would be the first one, where waiting opens a context."""
    host = RealHost()
    device = LateDevice(host, index=1, launch_s=0)
    module = LateTorch(host, [device, device])
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    module.set_device(torch.device("cuda", 1))
    lane = StreamLane(torch.device("cuda", 1))
    watch = EventWatch(lane.adopt_thread, lambda exc: DeviceLostError(str(exc)))
    stream = module.Stream()
    stream.launch(cost_s=0.01)
    event = lane.event()
    event.record(stream)
    handle = Handle({}, LATE_S, lambda _: None, DeviceLostError)
    watch.watch(event, handle)
    handle.synchronize()
    watch.stop()

    assert device.waits == {"token-events": 1}
    assert not device.strays
    assert not device.spun


def test_a_watch_that_cannot_start_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose device is gone already."""

    def fail() -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(rig.lane, "adopt_thread", fail)
    rig.transfer = TokenTransfer(rig.lane, Sizes(max_num_seqs=4), timeout_s=LATE_S)

    with pytest.raises(DeviceLostError, match="no such device"):
        rig.recorded().synchronize()
