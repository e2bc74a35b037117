"""Which stream a rank's model runs on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.model_runner.model_stream import ModelStream, leave_default_stream
from tests.support.fake_device import Event, FakeDevice, Run, Stream

DEVICE = torch.device("cuda:1")


class DeviceModule:
    """`torch.cuda` over a fake device: the current stream is at first the default stream."""

    def __init__(self, device: FakeDevice) -> None:
        self._fake = device
        self._default = self._current = device.stream()

    def default_stream(self, device: torch.device) -> Stream:
        assert device == DEVICE
        return self._default

    def current_stream(self, device: torch.device) -> Stream:
        assert device == DEVICE
        return self._current

    def set_stream(self, stream: Stream) -> None:
        self._current = stream

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802  # torch's name
        """Make a stream that can wait for another one."""
        assert device == DEVICE
        made: Any = self._fake.stream()

        def wait_stream(other: Stream) -> None:
            event = Event(self._fake)
            event.record(other)
            event.wait(made)

        made.wait_stream = wait_stream
        stream: Stream = made
        return stream


class Base:
    """A worker of vLLM's."""

    device = DEVICE

    def __init__(self, stages: int) -> None:
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(pipeline_parallel_size=stages))

    def init_device(self) -> None:
        """Nothing is to be done."""


class Worker(ModelStream, Base):
    """One whose model has a stream of its own."""


def test_a_copy_on_the_default_stream_does_not_wait_for_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model launches after `init_device` is on another stream, behind what was launched before."""
    ran: list[str] = []
    with FakeDevice(1, Run.ON_WAIT) as device:
        module = DeviceModule(device)
        monkeypatch.setattr(torch, "get_device_module", lambda _: module)
        module.current_stream(DEVICE).launch(lambda: ran.append("weights"))
        Worker(stages=1).init_device()
        model = module.current_stream(DEVICE)
        model.launch(lambda: ran.append("forward pass"))

        default = module.default_stream(DEVICE)
        default.launch(lambda: ran.append("copy"))
        default.synchronize()  # as a synchronous copy does
        assert ran == ["weights", "copy"]

        model.synchronize()
        assert ran == ["weights", "copy", "forward pass"]


def test_a_stream_that_was_chosen_before_is_kept() -> None:
    """With several ranks vLLM has left the default stream by itself, and what it made there knows that stream."""
    with FakeDevice(1, Run.ON_WAIT) as device:
        module = DeviceModule(device)
        chosen = device.stream()
        module.set_stream(chosen)
        leave_default_stream(DEVICE, module)

        assert module.current_stream(DEVICE) is chosen


def test_pipeline_stages_stay_on_the_stream_that_the_runner_was_made_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM's V2 runner sends to other stages is ordered behind that stream."""
    with FakeDevice(1, Run.ON_WAIT) as device:
        module = DeviceModule(device)
        monkeypatch.setattr(torch, "get_device_module", lambda _: module)
        Worker(stages=2).init_device()

        assert module.current_stream(DEVICE) is module.default_stream(DEVICE)
