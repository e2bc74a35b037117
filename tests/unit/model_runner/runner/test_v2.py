"""The output of vLLM's V2 runner on a late device: what docs/runner.md says of it."""

import pytest

from tests.support.fake_device import FakeDevice, Run
from tests.support.late_tensor import LateWorld
from tests.unit.model_runner.runner.steps import top_logprobs


@pytest.mark.parametrize("logprobs", [False, True])
def test_v2_blocks_nowhere_and_sleeps_for_one_event(logprobs: bool) -> None:
    """In every mode, drafts included; when this fails, nodes that run V2 would need more than they do now."""
    world = LateWorld(FakeDevice(1, Run.ON_WAIT))
    tops = top_logprobs(world, 6) if logprobs else None

    with world.audit.watching():
        output = world.v2_output([[7, 9, 0], [8, 0, 0]], [2, 1], tops)
        assert world.device.waits.total() == 0  # the model thread has gone on
        with world.as_cuda():
            found = output.get_output()

    assert found.sampled_token_ids == [[7, 9], [8]]
    assert (found.logprobs is not None) == logprobs
    assert (world.audit.snapshot(), world.event_waits) == ({}, 1)
    world.device.close()
