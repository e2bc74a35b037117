"""The asynchronous output of a step, vLLM's and ours, on a late device."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput

from baton.model_runner.runner.output import TokenOutput, outputs_through
from baton.model_runner.runner.piggybacked_copies import PiggybackedCopies
from baton.model_runner.tokens.packing import most_bytes
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.support.fake_device import FakeDevice, Run
from tests.support.fake_lane import FakeLane
from tests.support.late_tensor import LateWorld
from tests.unit.model_runner.runner.steps import top_logprobs

Make = Callable[..., Any]


class Rig:
    """A device, a transfer, and both ways of making an output."""

    def __init__(self) -> None:
        self.world = LateWorld(FakeDevice(1, Run.ON_WAIT))
        self.transfer = TokenTransfer(FakeLane(self.world.device, self.world.compute), most_bytes(max_num_seqs=4))
        self.ways: dict[str, Make] = {
            "vLLM's": AsyncGPUModelRunnerOutput,
            "ours": outputs_through(PiggybackedCopies(self.transfer), AsyncGPUModelRunnerOutput),
        }

    def make(self, way: str, ids: list[list[int]], *, logprobs: bool = False, **more: Any) -> Any:
        """Make the output of a step of requests a, b and so on."""
        real = torch.tensor(ids, dtype=torch.int32)
        tops = top_logprobs(self.world, real.numel()) if logprobs else None
        names = "abcd"[: len(ids)]
        with self.world.as_cuda():
            return self.ways[way](
                model_runner_output=SimpleNamespace(req_id_to_index={name: i for i, name in enumerate(names)}),
                sampled_token_ids=self.world.sampled(real),
                logprobs_tensors=tops,
                invalid_req_indices=[1],
                async_output_copy_stream=self.world.copy_stream(),
                vocab_size=100,
                **more,
            )


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.transfer.stop()
    made.world.device.close()


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("ids", [[[7], [8]], [[7, 9, -1], [8, -1, -1]]])
def test_ours_says_what_vllm_s_says(rig: Rig, ids: list[list[int]], logprobs: bool) -> None:
    """Tokens, logprobs and discarded requests, with and without drafts; making it waits for nothing."""
    outputs = {}
    with rig.world.audit.watching():
        for way in rig.ways:
            outputs[way] = rig.make(way, ids, logprobs=logprobs)
    assert rig.world.device.waits.total() == 0
    rig.transfer.start()
    found = {way: output.get_output() for way, output in outputs.items()}

    ours, theirs = found["ours"], found["vLLM's"]
    assert ours.sampled_token_ids == theirs.sampled_token_ids
    assert ours.sampled_token_ids[1] == []
    assert (ours.logprobs is None) == (not logprobs)
    if logprobs:
        assert ours.logprobs.logprobs.tolist() == theirs.logprobs.logprobs.tolist()
        assert ours.logprobs.logprob_token_ids.tolist() == theirs.logprobs.logprob_token_ids.tolist()
    assert rig.world.audit.snapshot() == {}  # vLLM's output is event-synced


def test_logits_that_are_no_numbers_are_counted(rig: Rig) -> None:
    """They travel with the tokens."""
    nans = rig.world.sampled(torch.tensor([3, 0], dtype=torch.int32))

    output = rig.make("ours", [[7], [8]], num_nans=nans)
    rig.transfer.start()

    assert isinstance(output, TokenOutput)
    assert output.get_output().num_nans_in_logits == {"a": 3, "b": 0}


def test_a_step_with_what_we_do_not_know_is_vllm_s(rig: Rig) -> None:
    """Such as vllm-ascend's routed experts: nothing is lost."""
    seen = {}
    make = outputs_through(PiggybackedCopies(rig.transfer), lambda **step: seen.update(step))

    make(
        model_runner_output=None,
        sampled_token_ids=torch.zeros(1, 1),
        logprobs_tensors=None,
        invalid_req_indices=[],
        async_output_copy_stream=None,
        vocab_size=100,
        routed_experts="experts",
    )

    assert seen["routed_experts"] == "experts"
    assert "num_nans" not in seen


def test_penalties_get_the_tokens_of_the_step_before(rig: Rig) -> None:
    """The crash reported in vLLM #23569: a frequency penalty over a placeholder indexes the vocabulary with -1.

    vLLM puts the token in its place when the event says that it is there.
    """
    output = rig.make("ours", [[7], [8]])
    output.sampled_token_ids_cpu.fill_(-1)
    histories = [[5, -1], [6]]  # of b, the last token was discarded
    batch: Any = SimpleNamespace(
        sampling_metadata=SimpleNamespace(output_token_ids=histories),
        prev_req_id_to_index={"a": 0, "b": 1},
        req_ids=["a", "b"],
    )
    rig.transfer.start()

    InputBatch.set_async_sampled_token_ids(batch, output.sampled_token_ids_cpu, output.async_copy_ready_event)
    InputBatch.update_async_output_token_ids(batch)

    assert histories == [[5, 7], [6]]
