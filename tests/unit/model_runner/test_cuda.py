"""Which stream a rank's model runs on."""

from types import SimpleNamespace

import pytest
import torch

from baton.model_runner.cuda import ModelStream
from tests.support.late_device import LateDevice, LateTorch
from tests.support.virtual_host import RealHost

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> LateTorch:
    """`torch.cuda`: the current stream is at first the legacy default one."""
    host = RealHost()
    made = LateTorch(host, [LateDevice(host, launch_s=0)])
    monkeypatch.setattr(torch, "get_device_module", lambda _: made)
    return made


class Base:
    device = DEVICE

    def __init__(self, stages: int) -> None:
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(pipeline_parallel_size=stages))

    def init_device(self) -> None:
        pass


class Worker(ModelStream, Base):
    """One whose model has a stream of its own."""


def test_a_copy_on_the_default_stream_does_not_wait_for_the_model(module: LateTorch) -> None:
    """What the model launches after `init_device` is on another stream, behind what was launched before."""
    default = module.default_stream(DEVICE)
    default.launch(cost_s=60.0)
    loaded_at = default.end

    Worker(stages=1).init_device()
    model = module.current_stream(DEVICE)
    model.launch(cost_s=60.0)
    default.copy(int(default.device.copy_bytes_per_s), "to host")

    assert model.end == pytest.approx(loaded_at + 60.0)
    assert default.end == pytest.approx(loaded_at + 1.0)


def test_a_stream_that_was_chosen_before_is_kept(module: LateTorch) -> None:
    """With several ranks vLLM has left the default stream by itself, and what it made there knows that stream."""
    module.set_stream(chosen := module.Stream(DEVICE))

    Worker(stages=1).init_device()

    assert module.current_stream(DEVICE) is chosen


def test_pipeline_stages_stay_on_the_stream_that_the_runner_was_made_on(module: LateTorch) -> None:
    """What vLLM's V2 runner sends to other stages is ordered behind that stream."""
    Worker(stages=2).init_device()

    assert module.current_stream(DEVICE) is module.default_stream(DEVICE)
