"""The output of vLLM's V2 runner on a late device: what docs/runner.md says of it."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.async_utils import AsyncOutput

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
    sampled: Any = SimpleNamespace(
        sampled_token_ids=world.sampled(torch.tensor([[7, 9, 0], [8, 0, 0]], dtype=torch.int32)),
        logprobs_tensors=tops,
        num_nans=None,
        sampling_mask_tensors=None,
    )
    step: Any = SimpleNamespace(
        prompt_logprobs_dict={}, prompt_token_id_logprobs_dict={}, logprobs=None, req_ids=["a", "b"]
    )
    accepted = world.sampled(torch.tensor([2, 1], dtype=torch.int32))

    with world.as_cuda(), world.audit.watching():
        with patch.object(torch.cuda, "Event", side_effect=world.event) as event:
            output = AsyncOutput(step, sampled, accepted, world.main_stream(), world.copy_stream(), False, None)
        assert world.device.waits.total() == 0  # the model thread has gone on
        found = output.get_output()

    event.assert_called_once_with(blocking=True)
    assert found.sampled_token_ids == [[7, 9], [8]]
    assert (found.logprobs is not None) == logprobs
    assert (world.audit.snapshot(), world.event_waits) == ({}, 1)
    world.device.close()
