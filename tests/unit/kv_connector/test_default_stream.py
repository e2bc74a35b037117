"""What D waits for on a GPU before it uses what a receiving engine acknowledged."""

import pytest
import torch

from baton.kv_connector.worker_side.landing import default_stream


class FakeAccelerator:
    """What torch says of a device that this machine lacks."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def default_stream(self, device: torch.device) -> "FakeAccelerator":
        """The stream that copies without a stream go to."""
        self.log.append(f"default stream of {device}")
        return self

    def record_event(self, event: object) -> None:
        """On that stream."""
        assert event is self
        self.log.append("event recorded")

    def Event(self, *, blocking: bool = False) -> object:  # noqa: N802  # torch's name
        """Make an event."""
        self.log.append("blocking event" if blocking else "spinning event")
        return self

    def synchronize(self) -> None:
        """Wait for the event."""
        self.log.append("event waited for")


def test_the_event_is_recorded_when_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it lies behind every copy that was acknowledged before; the waiter sleeps. Twice is two events."""
    accelerator = FakeAccelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda device: accelerator)
    stream = default_stream(torch.device("cuda", 1))
    assert stream is not None
    assert accelerator.log == []

    stream.synchronize()
    stream.synchronize()

    assert accelerator.log == 2 * ["blocking event", "default stream of cuda:1", "event recorded", "event waited for"]


def test_a_host_has_nothing_to_wait_for() -> None:
    """A copy has ended there when it returns."""
    assert default_stream(torch.device("cpu")) is None
