import threading
import time
from collections.abc import Callable, Iterator

import pytest

from baton.kv_connector.worker_side.landing import Arrived, Landing

LOADED = Arrived([], [], ["closed"])


class Device:
    """Passes an event when the test lets it, or fails."""

    def __init__(self) -> None:
        self.may_pass = threading.Event()
        self.fails = False

    def synchronize(self) -> None:
        """Wait for the test."""
        assert self.may_pass.wait(60)
        if self.fails:
            raise RuntimeError("the device is lost")


class Heard:
    """What a `Landing` gives back."""

    def __init__(self) -> None:
        self.device = Device()
        self.landed: list[Arrived] = []
        self.lost: list[Arrived] = []
        self.landing = Landing(
            self.device,
            landed=self.landed.append,
            lost=lambda arrived, _: self.lost.append(arrived),
            enter_device=lambda: None,
            patience_s=0.02,
        )

    def wait_for(self, heard: list[Arrived], ticks: Callable[[], None] = lambda: None) -> None:
        """Wait until there is something."""
        until = time.monotonic() + 60
        while not heard:
            assert time.monotonic() < until
            ticks()
            time.sleep(0.001)


@pytest.fixture
def heard() -> Iterator[Heard]:
    """One that has been started."""
    made = Heard()
    made.landing.start()
    yield made
    made.device.may_pass.set()
    made.landing.stop()


def test_blocks_come_back_when_a_device_goes_on_that_had_been_given_up(heard: Heard) -> None:
    """A process that was stopped for longer than the patience must not lose blocks for good."""
    heard.landing.hold(LOADED)
    heard.wait_for(heard.lost, lambda: heard.landing.give_up(time.monotonic()))
    assert heard.landed == []

    heard.device.may_pass.set()
    heard.wait_for(heard.landed)

    assert heard.landed == [LOADED]
    assert heard.lost == [LOADED]


def test_a_device_that_fails_keeps_the_blocks(heard: Heard) -> None:
    """Its writes may still be queued."""
    heard.device.fails = True
    heard.landing.hold(LOADED)
    heard.device.may_pass.set()
    heard.wait_for(heard.lost)

    assert (heard.lost, heard.landed) == ([LOADED], [])
