"""The waiter on a late device: what comes back when, and what a device that fails or hangs costs.

The clock is virtual, and a thread that waited for ever would end the test with `StuckError`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.kv_connector.worker_side import digesting, waiter
from baton.kv_connector.worker_side.digesting import DigestThread, Part
from baton.kv_connector.worker_side.landing import default_stream
from baton.kv_connector.worker_side.sync import recorder
from baton.kv_connector.worker_side.waiter import FAILED, STOP_S, DeviceWaiter
from baton.kv_connector.worker_side.worker_factory import _entry_of
from tests.support.late_device import LateDevice, LateEvent, LateTorch
from tests.support.virtual_host import VirtualHost

PATIENCE_S = 2.0
WAKE_S = 0.001


class Rig:
    """A waiter of device 1."""

    def __init__(self, host: VirtualHost) -> None:
        self.host = host
        self.begun = host.now()
        self.device = LateDevice(host, index=1, launch_s=0, record_s=0, wake_s=WAKE_S)
        self.stream = self.device.stream()
        self.back: list[tuple[str, float]] = []  # item, instant
        self.lost: list[tuple[str, str]] = []
        self.entered = 0
        self.waiter: DeviceWaiter[str] = DeviceWaiter(
            "waiter",
            enter_device=lambda: self.enter(),  # noqa: PLW0108  # a test may replace it
            passed=self.passed,
            failed=lambda item, reason: self.lost.append((item, reason)),
            patience_s=PATIENCE_S,
        )
        self.waiter.start()
        self.device.enter()

    def enter(self) -> None:
        self.entered += 1
        self.device.enter()

    def passed(self, item: str, at_s: float) -> None:
        self.back.append((item, round(at_s - self.begun, 6)))

    def watch(self, item: str, cost_s: float) -> LateEvent:
        """Launch a kernel and watch for its end."""
        self.stream.launch(cost_s=cost_s)
        event = self.stream.record_event()
        self.waiter.watch(event, item)
        return event

    def give_up(self) -> None:
        """What the control thread does at each tick."""
        self.waiter.give_up(self.host.now())


@contextmanager
def running() -> Iterator[Rig]:
    """Start a rig on a virtual host."""
    with VirtualHost() as host, host.driving(waiter, digesting):
        rig = Rig(host)
        yield rig
        rig.waiter.stop()


def test_late_device_gives_back_each_item_when_it_has_passed_its_event() -> None:
    """In order, not before and one wake-up behind; the thread has set its device."""
    with running() as rig:
        for number in range(3):
            rig.watch(f"layer {number}", 0.010)
        rig.host.sleep(1)

        assert rig.back == [("layer 0", 0.011), ("layer 1", 0.021), ("layer 2", 0.031)]
        assert rig.device.waits == {"waiter": 3}
        assert rig.entered == 1
        assert not rig.device.strays
        assert not rig.device.spun


def event_raises(rig: Rig) -> None:
    def synchronize() -> None:
        raise RuntimeError("device assert")

    rig.waiter.watch(SimpleNamespace(synchronize=synchronize), "a")


def device_is_not_entered(rig: Rig) -> None:
    def refuse() -> None:
        del rig.enter  # the instance's: next time it is the device's
        raise RuntimeError("no context")

    rig.enter = refuse  # type: ignore[method-assign]
    rig.watch("a", 0.010)


def item_cannot_go_on(rig: Rig) -> None:
    def passed(item: str, at_s: float) -> None:
        rig.waiter._passed = rig.passed
        raise LookupError(item)

    rig.waiter._passed = passed
    rig.watch("a", 0.010)


@pytest.mark.parametrize("fail", [event_raises, device_is_not_entered, item_cannot_go_on])
def test_late_device_item_that_fails_is_lost_alone(fail: Callable[[Rig], None]) -> None:
    """Or its prompt would wait for nothing; the thread lives on, and the next one comes back."""
    with running() as rig:
        fail(rig)
        rig.watch("b", 0.010)
        rig.host.sleep(1)

        assert (rig.lost, [item for item, _ in rig.back]) == ([("a", FAILED)], ["b"])
        assert not rig.device.strays


def test_late_device_that_hangs_is_given_up_after_its_patience() -> None:
    """Counted from its last progress; what it has passed has come back, and what it passes later does not."""
    with running() as rig:
        rig.watch("a", 1.5)
        rig.watch("b", 1.5)
        rig.watch("c", 5.0)
        rig.host.sleep(2.1)
        rig.give_up()
        assert ([item for item, _ in rig.back], rig.lost) == (["a"], [])  # b had less than its 2 s

        rig.host.sleep(3.0)
        rig.give_up()
        assert ([item for item, _ in rig.back], rig.lost) == (
            ["a", "b"],
            [("c", "the device made no progress for 2 s")],
        )
        rig.host.sleep(10.0)  # the device gets there after all
        rig.give_up()
        assert ([item for item, _ in rig.back], len(rig.lost)) == (["a", "b"], 1)

        rig.watch("d", 0.1)
        rig.host.sleep(1.0)
        assert [item for item, _ in rig.back] == ["a", "b", "d"]


def test_a_stop_waits_for_no_device_that_has_nothing_to_do() -> None:
    """The thread is woken for it, and ends."""
    with running() as rig:
        rig.watch("a", 0.1)
        rig.host.sleep(1.0)
        stopping = rig.host.now()

        rig.waiter.stop()

        assert rig.host.now() == stopping
        assert not rig.waiter._thread.is_alive()


def test_a_waiter_that_never_started_can_be_stopped() -> None:
    """Nothing comes back then, and there is nothing to wait for."""
    back: list[str] = []
    waiting: DeviceWaiter[str] = DeviceWaiter(
        "waiter",
        enter_device=lambda: None,
        passed=lambda item, _: back.append(item),
        failed=lambda item, _: back.append(item),
        patience_s=PATIENCE_S,
    )
    waiting.watch(SimpleNamespace(synchronize=lambda: None), "a")
    waiting.stop()

    assert [waiting.wait_for_next(block=False) for _ in range(3)] == [True, False, False]
    assert back == []


def test_late_device_that_hangs_for_good_holds_up_neither_what_comes_nor_a_stop() -> None:
    """Each later item is given up in its turn; stopping takes no longer than its bound."""
    with running() as rig:
        rig.watch("a", 1.0)
        rig.device.hang()
        for item in ("b", "c"):
            rig.host.sleep(1.5)
            rig.watch(item, 0.0)
            rig.give_up()
        assert [item for item, _ in rig.lost] == ["a"]
        rig.host.sleep(2.5)
        rig.give_up()
        assert [item for item, _ in rig.lost] == ["a", "b", "c"]

        rig.watch("d", 0.0)
        stopping = rig.host.now()
        rig.waiter.stop()
        assert rig.host.now() - stopping <= STOP_S
        rig.watch("e", 0.0)
        rig.device.lose()
        rig.host.sleep(10.0)
        rig.give_up()
        assert (rig.back, len(rig.lost)) == ([], 3)


def test_late_device_is_entered_and_waited_for_through_torchs_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What production records on device 1 is waited for by a thread of device 1, asleep."""
    with VirtualHost() as host, host.driving(waiter):
        devices = [LateDevice(host, index=number) for number in range(2)]
        module = LateTorch(host, devices)
        monkeypatch.setattr(torch, "get_device_module", lambda device: module)
        card, back = torch.device("cuda", 1), list[str]()
        passed_s: dict[str, float] = {}
        module.set_device(card)  # as vLLM does in the model thread
        waiting: DeviceWaiter[str] = DeviceWaiter(
            "waiter",
            enter_device=_entry_of(card),
            passed=passed_s.__setitem__,
            failed=lambda item, reason: back.append(f"{item}: {reason}"),
            patience_s=PATIENCE_S,
        )
        waiting.start()
        launched = host.now()
        module.current_stream(card).launch(cost_s=0.1)
        stream = recorder(card)
        assert (stream.device_type, stream.attention_writes_kv) == ("cuda", True)
        event = stream.record()
        assert event is not None
        waiting.watch(event, "a")
        host.sleep(1)
        waiting.stop()

        assert back == []
        assert passed_s["a"] - launched >= 0.1
        assert devices[1].waits == {"waiter": 1}
        module.current_stream(card).launch(cost_s=0.1)
        begun = host.now()
        stream.synchronize()
        assert host.now() - begun >= 0.1
        assert not devices[1].strays
        assert not devices[1].spun


def test_late_device_has_what_mooncake_copied_when_its_default_stream_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event is recorded when it is waited for, so that it lies behind every copy acknowledged before; twice is two events."""
    with VirtualHost() as host:
        devices = [LateDevice(host, index=number) for number in range(2)]
        monkeypatch.setattr(torch, "get_device_module", lambda device: LateTorch(host, devices))
        devices[1].enter()
        landed = default_stream(torch.device("cuda", 1))
        assert landed is not None
        for _ in range(2):
            devices[1].default_stream.launch(cost_s=0.1)
            begun = host.now()
            landed.synchronize()
            assert host.now() - begun >= 0.1

        assert not devices[1].strays
        assert not devices[1].spun
    assert default_stream(torch.device("cpu")) is None  # a copy has ended there when it returns


@pytest.mark.parametrize("enters", [True, False])
def test_late_device_digests_are_computed_on_the_ranks_device(enters: bool) -> None:
    """A new thread's device is the first one: without `enter_device` the digest thread of rank 1 would use it."""
    with running() as rig:
        done: list[Any] = []

        def compute(*_: object) -> bytes:
            rig.stream.synchronize()
            return b"digest"

        thread = DigestThread[str](compute, lambda *found: done.append(found), *([rig.device.enter] if enters else []))
        thread.start()
        thread.ask("a", [Part([1], [0])])
        rig.host.sleep(1)
        stopping = rig.host.now()
        thread.stop()

        assert rig.host.now() == stopping
        assert done == [("a", b"digest")]
        assert bool(rig.device.strays) is not enters
