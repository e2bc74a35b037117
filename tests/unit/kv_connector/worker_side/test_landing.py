"""Blocks of a decode rank whose device had been given up; what else waits for the device: tests/integration."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from baton.kv_connector.handoff.incoming import Resolved
from baton.kv_connector.worker_side.landing import DEVICE_FAILED, Arrived, Landing
from tests.support.fake_device import FakeDevice, Run

LOADED = Arrived([], [], ["closed"])
RESOLVED = Resolved("d-a", "a", True, True, "", None)


def test_blocks_come_back_when_a_device_goes_on_that_had_been_given_up() -> None:
    """A process that was stopped for longer than the patience must not lose blocks for good."""
    landed: list[Arrived] = []
    lost: list[Arrived] = []

    def wait_for(heard: list[Arrived], tick: Callable[[], object]) -> None:
        until = time.monotonic() + 60
        while not heard:
            assert time.monotonic() < until
            tick()
            time.sleep(0.001)

    with FakeDevice(1, Run.ON_ADVANCE) as device:
        landing = Landing(
            device.stream(),
            landed=landed.append,
            lost=lambda arrived, _: lost.append(arrived),
            enter_device=lambda: None,
            patience_s=0.02,
        )
        landing.start()
        landing.hold(LOADED)
        wait_for(lost, lambda: landing.give_up(time.monotonic()))
        assert landed == []

        wait_for(landed, device.advance)
        landing.stop()

    assert (landed, lost) == ([LOADED], [LOADED])


@pytest.mark.parametrize("device_fails", [False, True])
def test_what_could_not_be_made_use_of_is_not_reported_as_lost_too(device_fails: bool) -> None:
    """The same blocks would be given up that have just been given back, or given up twice."""
    told: list[str] = []

    def synchronize() -> None:
        if device_fails:
            raise RuntimeError("device assert")

    def tell(word: str) -> None:
        told.append(word)
        raise LookupError(word)

    landing = Landing(
        SimpleNamespace(synchronize=synchronize),
        landed=lambda _: tell("landed"),
        lost=lambda _, reason: tell(reason),
        enter_device=lambda: None,
        patience_s=60.0,
    )
    landing.hold(LOADED)

    assert landing.wait_for_next(block=False)

    assert told == [DEVICE_FAILED if device_fails else "landed"]


@pytest.mark.parametrize(
    ("arrived", "device_fails", "again"),
    [
        (LOADED, False, [LOADED]),
        (Arrived([], [RESOLVED], ["closed"]), False, [LOADED]),  # the request computes its prompt in other blocks
        (Arrived([], [RESOLVED], []), False, []),
        (LOADED, True, []),
    ],
)
def test_only_blocks_that_the_device_is_late_for_are_waited_for_again(
    arrived: Arrived, device_fails: bool, again: list[Arrived]
) -> None:
    """A device that has failed will never have them."""
    landed: list[Arrived] = []
    lost: list[tuple[Arrived, str]] = []

    def synchronize() -> None:
        if device_fails:
            raise RuntimeError("device assert")

    landing = Landing(
        SimpleNamespace(synchronize=synchronize),
        landed=landed.append,
        lost=lambda *told: lost.append(told),
        enter_device=lambda: None,
        patience_s=0.0,
    )
    landing.hold(arrived)
    while not device_fails and not lost:
        landing.give_up(time.monotonic())

    assert landing.wait_for_next(block=False) is True
    assert landing.wait_for_next(block=False) is bool(again)
    assert (lost, landed) == ([(arrived, DEVICE_FAILED)], again)
