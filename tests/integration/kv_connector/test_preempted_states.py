"""A prompt that vLLM's own scheduler preempts on P while states of it are cached: the transfer ends, the request does not; the worker is played."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.request import Request, RequestStatus

from baton.contracts.kv_transfer import TransferParams
from baton.kv_connector.handoff.metadata import PrefillStep, Step
from tests.support.schedulers import BLOCK_TOKENS, end_step, engine_config, request_of, scheduler_of

TOKEN, BLOCKS = 7, 40
CHUNK = 3 * BLOCK_TOKENS
TOKENS = 2 * CHUNK + 4  # P computes one less: two chunks that end with blocks, and one of three tokens


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def scheduler(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    config = engine_config(tmp_path, "kv_producer", max_num_batched_tokens=CHUNK, async_scheduling=request.param)
    made = scheduler_of(config, BLOCKS, states=True)
    yield made
    made.shutdown()


def ask(scheduler: Scheduler) -> Request:
    request = request_of("a", TOKENS, TransferParams(transfer_id="a" * 32, role="prefill", peer=""))
    scheduler.add_request(request)
    return request


def told(output: SchedulerOutput) -> PrefillStep:
    """What the connector says of a step to the workers."""
    assert isinstance(output.kv_connector_metadata, Step)
    assert output.kv_connector_metadata.prefill is not None
    return output.kv_connector_metadata.prefill


def end(scheduler: Scheduler, output: SchedulerOutput, *, samples: bool) -> list[EngineCoreOutput]:
    """The step of the request ends."""
    found = end_step(scheduler, output, {name: [TOKEN] for name in output.num_scheduled_tokens} if samples else {})
    return [each for outputs in found.values() for each in outputs]


def preempt(scheduler: Scheduler, request: Request) -> None:
    """As `schedule` does for a request that needs its blocks."""
    scheduler.running.remove(request)
    scheduler._preempt_request(request, 0.0, drop_stale_output=scheduler.requires_kv_delivery)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_it_starts_again_from_a_cached_state_and_nothing_more_is_sent(scheduler: Scheduler, chunks: int) -> None:
    """Preempted after any chunk, the last one issued and its token under way, too: the token is sampled again, no block is held."""
    request = ask(scheduler)
    issued = [scheduler.schedule() for _ in range(chunks)]
    assert [step.progress[0].ready_blocks for step in map(told, issued)] == [3, 6, 7][:chunks]

    preempt(scheduler, request)
    assert (request.status, request.num_computed_tokens) == (RequestStatus.PREEMPTED, 0)
    again = scheduler.schedule()
    for output in issued:
        assert end(scheduler, output, samples=output is issued[-1] and chunks == 3) == []

    assert request.num_computed_tokens - again.num_scheduled_tokens["a"] == min(chunks, 2) * CHUNK
    assert told(again).voids == [("a", "preempted")]
    outputs: list[EngineCoreOutput] = []
    later = [again]
    while not request.is_finished():
        outputs += end(scheduler, later[-1], samples=request.num_computed_tokens == TOKENS - 1)
        later.append(scheduler.schedule())
    assert [(output.new_token_ids, output.finish_reason) for output in outputs] == [([TOKEN], FinishReason.LENGTH)]
    assert all(not (step.started or step.progress or step.holds) for step in map(told, later))
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1
