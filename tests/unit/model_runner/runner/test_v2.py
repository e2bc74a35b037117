"""The output of vLLM's V2 runner on a late device: what docs/runner.md says of it."""

import pytest
import torch
from vllm.v1.outputs import LogprobsTensors

from tests.support.fake_device import FakeDevice, Run
from tests.support.late_tensor import LateWorld


@pytest.mark.parametrize("logprobs", [False, True])
def test_v2_blocks_nowhere_and_sleeps_for_one_event(logprobs: bool) -> None:
    """In every mode, drafts included; when this fails, nodes that run V2 would need more than they do now."""
    world = LateWorld(FakeDevice(1, Run.ON_WAIT))
    tops = None
    if logprobs:
        values = torch.arange(12, dtype=torch.float32).view(6, 2)
        tops = LogprobsTensors(*map(world.sampled, (values.to(torch.int32), -values, torch.ones(6))))

    with world.audit.watching():
        output = world.v2_output([[7, 9, 0], [8, 0, 0]], [2, 1], tops)
        assert world.device.waits.total() == 0  # the model thread has gone on
        with world.as_cuda():
            found = output.get_output()

    assert found.sampled_token_ids == [[7, 9], [8]]
    assert (found.logprobs is not None) == logprobs
    assert (world.audit.snapshot(), world.event_waits) == ({}, 1)
    world.device.close()
