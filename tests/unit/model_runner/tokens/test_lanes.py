"""What the copy stream of a real device is asked, in order; no device is needed to see that."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch

from baton.model_runner.tokens.lanes import StreamLane
from tests.support.late_device import LateDevice, LateTorch
from tests.support.virtual_host import RealHost

DEVICE = torch.device("cuda", 0)


class Module:
    """A device's module of torch that writes down what it is asked."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def Stream(self, device: torch.device) -> "NamedStream":  # noqa: N802  # as torch names it
        return NamedStream(self, f"copy stream of {device}")

    def Event(self, *, blocking: bool) -> "NamedEvent":  # noqa: N802
        assert blocking
        return NamedEvent(self)

    def current_stream(self, device: torch.device) -> "NamedStream":
        return NamedStream(self, f"model stream of {device}")

    @contextmanager
    def stream(self, stream: "NamedStream") -> Iterator[None]:
        self.log.append(f"enter {stream.name}")
        yield
        self.log.append("leave")


class NamedStream:
    """A stream."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.name = module, name

    def wait_stream(self, other: "NamedStream") -> None:
        self.module.log.append(f"{self.name} waits for {other.name}")


class NamedEvent:
    """An event."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def record(self, stream: NamedStream) -> None:
        self._module.log.append(f"record on {stream.name}")


@pytest.fixture
def module() -> Iterator[Module]:
    """In the place of `torch.cuda`."""
    made = Module()
    with patch.object(torch, "get_device_module", lambda device: made):
        yield made


def test_copies_run_behind_the_model_and_beside_what_follows(module: Module) -> None:
    """On a stream of their own, which has waited for the model's; the event stands behind them on that stream."""
    lane = StreamLane(DEVICE)
    event = lane.event()
    target = torch.zeros(2)

    with lane.issuing():
        lane.copy(target, torch.ones(2))
        module.log.append("copied")
        lane.record(event)

    assert module.log == [
        "copy stream of cuda:0 waits for model stream of cuda:0",
        "enter copy stream of cuda:0",
        "copied",
        "record on copy stream of cuda:0",
        "leave",
    ]
    assert target.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("module")
def test_copies_leave_the_host_alone() -> None:
    """One without `non_blocking`, or into pageable memory, waits until it is through (vLLM #22760, #22754, vllm-ascend #2788)."""
    target, source, lane = Mock(), Mock(), StreamLane(DEVICE)

    lane.copy(target, source)
    with patch.object(torch, "empty") as empty:
        lane.host_memory(64)

    target.copy_.assert_called_once_with(source, non_blocking=True)
    empty.assert_called_once_with(64, dtype=torch.uint8, pin_memory=True)


def test_late_device_is_waited_for_asleep_by_a_thread_that_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device 1: a new thread's would be the first one, where waiting opens a context."""
    host = RealHost()
    device = LateDevice(host, index=1, launch_s=0)
    module = LateTorch(host, [device, device])
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    module.set_device(torch.device("cuda", 1))
    lane = StreamLane(torch.device("cuda", 1))
    stream = module.Stream()
    stream.launch(cost_s=0.01)
    event = lane.event()
    event.record(stream)

    def wait() -> None:
        lane.adopt_thread()
        event.synchronize()

    taker = threading.Thread(target=wait, name="taker", daemon=True)
    taker.start()
    taker.join(20.0)

    assert device.waits == {"taker": 1}
    assert not device.strays
    assert not device.spun
