"""Drafts and counts of a step, by vLLM's own code of its runner, on a late device: with its copies, and in ours."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from vllm.v1.spec_decode.ngram_proposer_gpu import copy_num_valid_draft_tokens, update_scheduler_for_invalid_drafts
from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput, GPUModelRunner

from baton.model_runner.cuda import CudaRunner
from baton.model_runner.runner.event_synced import EVENTS
from baton.model_runner.runner.output import outputs_through
from baton.model_runner.runner.piggybacked_copies import PiggybackedCopies
from baton.model_runner.tokens.handles import DeviceLostError, TokenTransferError
from baton.model_runner.tokens.packing import most_bytes
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.support.fake_device import DeviceError, FakeDevice, Run
from tests.support.fake_lane import FakeLane
from tests.support.late_tensor import LateWorld
from tests.unit.model_runner.runner import steps
from tests.unit.model_runner.runner.steps import bare_runner

DRAFTS = 3
LATE_S = 20.0  # against hanging
UNTOUCHED = 77


class Found(NamedTuple):
    """What the runner reads of a step."""

    drafts: list[list[int]]
    sampled_counts: list[int]
    accepted: list[int]
    draft_counts: dict[str, int]


class Rig:
    """A runner with what these parts of vLLM's look at, as its constructor makes it, and nothing else."""

    def __init__(self, kind: type[GPUModelRunner], run: Run = Run.ON_WAIT) -> None:
        self.world = LateWorld(FakeDevice(1, run))
        self.lane = FakeLane(self.world.device, self.world.compute)
        room = most_bytes(max_num_seqs=4, speculative_tokens=DRAFTS)
        self.transfer = TokenTransfer(self.lane, room, slots=2)
        self.runner = self._runner(kind)
        self._output: Callable[..., Any] = AsyncGPUModelRunnerOutput
        if kind is CudaRunner:
            self.runner.token_transfer = self.transfer
            self.runner.companions = PiggybackedCopies(self.transfer)
            self.runner._exchange(self.transfer)
            self._output = outputs_through(self.runner.companions, AsyncGPUModelRunnerOutput)

    def _runner(self, kind: type[GPUModelRunner]) -> Any:
        made = bare_runner(kind, self.world)
        for event in EVENTS:
            setattr(made, event, self.world.event())
        for stream in ("draft_token_ids", "valid_sampled_token_count", "_num_valid_draft_tokens"):
            setattr(made, f"{stream}_copy_stream", self.world.copy_stream())
        made.draft_token_ids_cpu = torch.full((4, DRAFTS), UNTOUCHED, dtype=torch.int64)
        made.valid_sampled_token_count_cpu = torch.full((4,), UNTOUCHED, dtype=torch.int32)
        made._num_valid_draft_tokens_cpu = torch.full((4,), UNTOUCHED, dtype=torch.int32)
        made.use_async_scheduling, made.use_async_spec_decode = True, True
        made.speculative_config, made.model_config = SimpleNamespace(), SimpleNamespace(is_hybrid=True)
        made.cache_config = SimpleNamespace(mamba_cache_mode="none")
        made.num_accepted_tokens = SimpleNamespace(gpu=self.world.held(torch.ones(4, dtype=torch.int32)))
        made.input_batch.sampling_metadata = SimpleNamespace(output_token_ids=[[1], [2]])
        made.input_batch.num_accepted_tokens_cpu_tensor = torch.full((4,), UNTOUCHED, dtype=torch.int32)
        return made

    def close(self) -> None:
        self.world.device.close()
        self.transfer.stop()

    @property
    def copies(self) -> int:
        """How many to the host were issued, vLLM's and ours."""
        return self.world.copies_to_host + self.lane.copies_to_host

    def sample(self, step: int) -> Any:
        """Return ids of a step of two requests: the first has all drafts accepted, the second one less with each step."""
        accepted = torch.tensor([[step * 10 + i for i in range(4)], [step * 10] * 4], dtype=torch.int32)
        accepted[1, 1 + step % 3 :] = -1
        with self.world.as_cuda():
            self.runner._update_states_after_model_execute(accepted, None)
        return self.world.sampled(accepted)

    def draft(self, step: int) -> None:
        """Do what a drafter on the device leaves behind."""
        runner = self.runner
        with self.world.as_cuda():
            counts = self.world.sampled(torch.tensor([4, 1 + step % 3], dtype=torch.int32))
            runner._copy_valid_sampled_token_count(torch.tensor([1, 2]), counts)
            copy_num_valid_draft_tokens(
                runner._num_valid_draft_tokens_cpu,
                runner._num_valid_draft_tokens_copy_stream,
                runner._num_valid_draft_tokens_event,
                self.world.sampled(torch.tensor([step % 3, 2], dtype=torch.int32)),
                2,
            )
            drafts = torch.arange(2 * DRAFTS, dtype=torch.int32).view(2, DRAFTS) + step * 100
            runner._draft_token_ids = self.world.sampled(drafts)
            runner._copy_draft_token_ids_to_cpu(SimpleNamespace(has_structured_output_requests=True))

    def output(self, ids: Any, **more: Any) -> Any:
        """Make what a step under asynchronous scheduling returns."""
        with self.world.as_cuda():
            return self._output(
                model_runner_output=SimpleNamespace(req_id_to_index={"a": 0, "b": 1}),
                sampled_token_ids=ids,
                logprobs_tensors=None,
                invalid_req_indices=[],
                async_output_copy_stream=self.world.copy_stream(),
                vocab_size=1000,
                **more,
            )

    def step(self, step: int) -> Any:
        ids = self.sample(step)
        self.draft(step)
        return self.output(ids)

    def read(self) -> Found:
        """Read what the next step does, by vLLM's ways of reading it."""
        return Found(
            self.runner._get_draft_token_ids_cpu()[0],
            self.runner._get_valid_sampled_token_count(),
            self.accepted(),
            self.draft_counts(),
        )

    def accepted(self) -> list[int]:
        """As in `_prepare_inputs`."""
        self.runner.num_accepted_tokens_event.synchronize()
        found: list[int] = self.runner.input_batch.num_accepted_tokens_cpu_tensor[:2].tolist()
        return found

    def draft_counts(self) -> dict[str, int]:
        """As in `_update_states`: how many drafts are left of three."""
        scheduled: Any = SimpleNamespace(
            scheduled_cached_reqs=SimpleNamespace(req_ids=["a", "b"]),
            scheduled_spec_decode_tokens={name: [-1] * DRAFTS for name in "ab"},
            total_num_scheduled_tokens=8,
            num_scheduled_tokens={"a": 4, "b": 4},
        )
        update_scheduler_for_invalid_drafts(
            self.runner._num_valid_draft_tokens_event,
            self.runner._num_valid_draft_tokens_cpu,
            scheduled,
            {"a": 0, "b": 1},
        )
        return {name: len(drafts) for name, drafts in scheduled.scheduled_spec_decode_tokens.items()}


def wanted(step: int) -> Found:
    drafts = [[step * 100 + i for i in range(DRAFTS)], [step * 100 + DRAFTS + i for i in range(DRAFTS)]]
    accepted = [4, 1 + step % 3]
    return Found(drafts, accepted, accepted, {"b": 2} | ({"a": step % 3} if step % 3 else {}))


def tokens(step: int) -> list[list[int]]:
    return [[step * 10 + i for i in range(4)], [step * 10] * (1 + step % 3)]


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Ours, on a device that runs what a thread waits for, with a taker."""
    made = Rig(CudaRunner)
    made.transfer.start()
    yield made
    made.close()


def test_a_step_brings_drafts_and_counts_in_one_copy() -> None:
    """What the engine brings by five, and reads with its own code; nothing blocks, and only a read waits."""
    found, copies, waits = {}, {}, {}
    for kind in (GPUModelRunner, CudaRunner):
        rig = Rig(kind)
        with rig.world.audit.watching():
            output = rig.step(1)
            waits[kind] = rig.world.device.waits.total()
            rig.transfer.start()
            found[kind] = rig.read(), output.get_output().sampled_token_ids
        copies[kind] = rig.copies
        assert rig.world.audit.snapshot() == {}
        rig.close()

    assert found[CudaRunner] == found[GPUModelRunner] == (wanted(1), tokens(1))
    assert copies == {GPUModelRunner: 5, CudaRunner: 1}
    assert waits == {GPUModelRunner: 0, CudaRunner: 0}


def test_steps_are_read_in_time_while_a_reader_is_slow(rig: Rig) -> None:
    """Tokens are turned into lists long after their slot has been used again; drafts and counts are the last step's."""
    outputs = []

    for step in range(1, 8):
        outputs.append(rig.step(step))
        assert rig.read() == wanted(step)

    assert [output.get_output().sampled_token_ids for output in outputs] == [tokens(step) for step in range(1, 8)]
    assert rig.copies == 7


def test_a_step_that_is_not_read_changes_nothing(rig: Rig) -> None:
    """The next step's drafts take the place of those that were not asked for."""
    rig.step(1)
    rig.step(2)

    assert rig.read() == wanted(2)
    assert rig.read() == wanted(2)  # once more: it is on the host


def book(rig: Rig, ids: Any) -> list[list[int]]:
    """Let a runner book a step under synchronous scheduling."""
    rig.runner.use_async_scheduling = False
    found: list[list[int]] = steps.book(rig.runner, ids)[3]
    return found


@pytest.mark.parametrize("routed", [False, True])
def test_under_synchronous_scheduling_all_is_there_when_the_step_ends(rig: Rig, routed: bool) -> None:
    """VLLM moves rows of accepted counts from then on, and takes drafts. One copy, one wait.

    Beside routed experts they travel alone: up to vLLM 0.30 its own wait for tokens covers the copy of those.
    """
    rig.runner.routed_experts_initialized = routed
    ids = rig.sample(1)
    rig.draft(1)

    assert book(rig, ids) == tokens(1)

    assert rig.runner.input_batch.num_accepted_tokens_cpu_tensor[:2].tolist() == wanted(1).accepted
    waited = rig.world.device.waits.total()
    assert rig.read() == wanted(1)
    assert routed or (waited, rig.copies) == (1, 1)


def test_drafts_made_of_tokens_on_the_host_travel_alone(rig: Rig) -> None:
    """They do not exist before the tokens have come; a second copy, whose wait is bounded as well."""
    assert book(rig, rig.sample(1)) == tokens(1)
    rig.draft(1)

    assert rig.read() == wanted(1)
    assert rig.copies == 2


@pytest.mark.parametrize("left", [True, False])
def test_drafts_that_do_not_fit_are_zeros(rig: Rig, left: bool) -> None:
    """VLLM writes them on the host, in the place of what may be on its way or about to leave."""
    ids = rig.sample(1)
    rig.draft(1)
    output = rig.output(ids) if left else None
    rig.runner._draft_token_ids = torch.zeros(2, DRAFTS)
    with rig.world.as_cuda():
        rig.runner._copy_draft_token_ids_to_cpu(SimpleNamespace(has_structured_output_requests=True), zeros_only=True)
    output = output or rig.output(ids)

    assert rig.runner._get_draft_token_ids_cpu()[0] == [[0] * DRAFTS] * 2
    assert output.get_output().sampled_token_ids == tokens(1)


def test_beside_an_output_of_the_engine_s_they_travel_alone(rig: Rig) -> None:
    """As with the fault mask of expert parallelism. They leave at once, and not behind the next step."""
    seen = []
    rig._output = outputs_through(rig.runner.companions, lambda **_: seen.append(rig.lane.copies_to_host))

    ids = rig.sample(1)
    rig.draft(1)
    rig.output(ids, check_ep_fault=True)

    assert seen == [1]
    assert rig.read() == wanted(1)


def test_a_batch_that_is_made_again_gets_its_counts(rig: Rig) -> None:
    """VLLM makes one when it knows its KV cache: after the runner has been constructed."""
    rig.step(1)
    rig.read()
    rig.runner.input_batch.num_accepted_tokens_cpu_tensor = torch.full((4,), UNTOUCHED, dtype=torch.int32)

    rig.step(2)

    assert rig.read() == wanted(2)
    assert rig.runner.input_batch.num_accepted_tokens_cpu_tensor.tolist()[2:] == [UNTOUCHED] * 2


def wait_for_inputs(rig: Rig) -> None:
    """Prepare inputs twice; not before the device has read the first."""
    for _ in range(2):
        with rig.runner.synchronize_input_prep():
            rig.world.compute.launch(lambda: None)


def wait_for_list(rig: Rig) -> None:
    """As vLLM does where the tokens come by its own copy."""
    GPUModelRunner._to_list(rig.runner, rig.world.sampled(torch.ones(2, 1)))


WAITS: dict[str, Callable[[Rig], Any]] = {
    "transfer_event": wait_for_list,
    "draft_token_ids_event": lambda rig: rig.runner._get_draft_token_ids_cpu(),
    "valid_sampled_token_count_event": lambda rig: rig.runner._get_valid_sampled_token_count(),
    "num_accepted_tokens_event": Rig.accepted,
    "_num_valid_draft_tokens_event": Rig.draft_counts,
    "prepare_inputs_event": wait_for_inputs,
}


def test_after_a_step_that_could_not_be_sent_old_drafts_are_not_read() -> None:
    """A caller that asks for them has the same error."""
    rig = Rig(CudaRunner, Run.ON_ADVANCE)
    ids = rig.sample(1)
    rig.draft(1)
    rig.transfer.stop()

    with pytest.raises(TokenTransferError, match="the runner has stopped"):
        rig.output(ids)
    with pytest.raises(TokenTransferError, match="the runner has stopped"):
        rig.read()
    rig.close()


@pytest.mark.parametrize("event", EVENTS)
def test_a_lost_device_is_an_error_at_every_wait(event: str) -> None:
    """One that says what it is, and at once: of a step's copy ours, of the device's own event its own."""
    got: list[type[Exception] | str] = []
    rig = Rig(CudaRunner, Run.ON_ADVANCE)
    rig.transfer.start()
    rig.step(1)

    def wait() -> None:
        try:
            WAITS[event](rig)
            got.append("went on")
        except Exception as exc:  # noqa: BLE001  # looked at by the test
            got.append(type(exc))

    waiter = threading.Thread(target=wait, daemon=True)
    rig.world.device.lose("fell off the bus")
    waiter.start()
    waiter.join(LATE_S)
    found = got or ["hangs"]
    rig.close()
    waiter.join(LATE_S)

    assert found == [DeviceError if event in ("transfer_event", "prepare_inputs_event") else DeviceLostError]
