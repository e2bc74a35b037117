"""Requests that a prefill node's engine ends after their first token, in vLLM's own scheduler; the worker is played."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.request import Request, RequestStatus

from baton.contracts.kv_transfer import TransferParams
from baton.kv_connector.scheduler_side.first_output import END_AFTER_S
from tests.support.schedulers import BLOCK_TOKENS, end_step, engine_config, request_of, scheduler_of

TOKEN = 7
CLIENT = 3  # the server process that has the requests


class Engine:
    """A prefill node's scheduler, and one rank whose steps sample `TOKEN`."""

    def __init__(self, folder: Path, blocks: int = 100, **flags: Any) -> None:
        self.scheduler = scheduler_of(engine_config(folder, "kv_producer", **flags), blocks)
        self.pool: Any = self.scheduler.kv_cache_manager.block_pool
        self.computed: list[int] = []  # tokens of each step

    def ask(self, name: str, tokens: int, *, relays: bool = True, **sampling: Any) -> Request:
        """A request arrives whose stream begins here."""
        params = TransferParams(transfer_id=name * 32, role="prefill", peer="", first_token=True, relays=relays)
        request = request_of(name, tokens, params, **({"max_tokens": 50} | sampling))
        request.client_index = CLIENT
        self.scheduler.add_request(request)
        return request

    def schedule(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        self.computed.append(output.total_num_scheduled_tokens)
        self.ready = {
            name: self.scheduler.requests[name].num_computed_tokens >= self.scheduler.requests[name].num_prompt_tokens
            for name in output.num_scheduled_tokens
        }
        return output

    def end(self, output: SchedulerOutput, *, sent: set[str] = frozenset()) -> list[EngineCoreOutput]:  # type: ignore[assignment]
        sampled = {name: [TOKEN] for name in output.num_scheduled_tokens if self.ready[name]}
        told = end_step(self.scheduler, output, sampled, finished_sending=set(sent))
        assert {client for client, outputs in told.items() if outputs} <= {CLIENT}
        return told.get(CLIENT, [])

    def step(self, **more: Any) -> list[EngineCoreOutput]:
        return self.end(self.schedule(), **more)


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Engine]:
    return lambda **flags: Engine(tmp_path, **flags)


def reasons(outputs: list[EngineCoreOutput]) -> list[tuple[list[int], FinishReason | None]]:
    """The tokens and ends in what a server is told."""
    return [(output.new_token_ids, output.finish_reason) for output in outputs]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("budget", [512, 32])
def test_one_token_is_sampled_and_its_end_comes_later(
    engine: Callable[..., Engine], asynchronous: bool, budget: int
) -> None:
    """No step follows the prompt's last; the blocks stay until they are pushed; an idle engine goes on until the end is told."""
    made = engine(async_scheduling=asynchronous, max_num_batched_tokens=budget)
    request = made.ask("a", 5 * BLOCK_TOKENS)
    first = made.schedule()
    while not made.ready["a"]:
        made.end(first)
        first = made.schedule()
    if asynchronous:  # the next step begins before the first has ended
        ready = made.ready
        second = made.schedule()
        made.ready = ready
        assert second.total_num_scheduled_tokens == 0

    assert reasons(made.end(first)) == [([TOKEN], None)]
    assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED
    assert made.pool.get_num_free_blocks() == 99 - 5
    assert made.step() == []
    assert made.step(sent={"a"}) == []
    assert made.scheduler.has_requests()
    time.sleep(END_AFTER_S)
    assert reasons(made.step()) == [([], FinishReason.ABORT)]
    made.step()
    assert not made.scheduler.has_requests()
    assert made.pool.get_num_free_blocks() == 99
    assert sum(made.computed) == 5 * BLOCK_TOKENS


@pytest.mark.parametrize(
    ("tokens", "sampling", "end"),
    [
        (40, {"stop_token_ids": [TOKEN]}, FinishReason.STOP),
        (40, {"max_tokens": 1}, FinishReason.LENGTH),
        (511, {}, FinishReason.LENGTH),
    ],
)
def test_an_end_of_the_answer_is_told_with_the_token(
    engine: Callable[..., Engine], tokens: int, sampling: dict[str, Any], end: FinishReason
) -> None:
    """The client's stop token, its own bound, a full context: what one server says."""
    made = engine()
    made.ask("a", tokens, **sampling)

    assert reasons(made.step()) == [([TOKEN], end)]
    time.sleep(END_AFTER_S)
    assert made.step(sent={"a"}) == []
    assert not made.scheduler._ends


def test_a_request_that_is_preempted_before_its_token_is_still_ended_by_it(engine: Callable[..., Engine]) -> None:
    """It computes its prompt again, and no more."""
    made = engine(max_num_batched_tokens=32)
    request = made.ask("a", 4 * BLOCK_TOKENS)
    made.step()
    made.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert request.status == RequestStatus.PREEMPTED

    outputs = [output for _ in range(3) for output in made.step()]

    assert reasons(outputs) == [([TOKEN], None)]
    assert request.is_finished()


def test_one_that_is_aborted_leaves_nothing(engine: Callable[..., Engine]) -> None:
    """Before its token, and after it: by then the engine has ended it, and its blocks are still pushed."""
    made = engine()
    made.ask("a", 40)
    made.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert made.step() == []
    assert made.pool.get_num_free_blocks() == 99

    made.ask("b", 40)
    assert reasons(made.step()) == [([TOKEN], None)]
    made.scheduler.finish_requests("b", RequestStatus.FINISHED_ABORTED)
    assert made.pool.get_num_free_blocks() == 99 - 3
    assert made.step(sent={"b"}) == []
    assert made.pool.get_num_free_blocks() == 99


def test_other_legs_are_as_before(engine: Callable[..., Engine]) -> None:
    """A leg whose answer stays here ends with what its own parameters say, also in a step in which one is left open."""
    made = engine()
    made.ask("a", 40, relays=False, max_tokens=1)
    made.ask("b", 40)

    assert reasons(made.step()) == [([TOKEN], FinishReason.LENGTH), ([TOKEN], None)]


def test_one_whose_prompt_takes_longer_is_left_open_too(engine: Callable[..., Engine]) -> None:
    """When another has ended in an earlier step."""
    made = engine(max_num_batched_tokens=64)
    made.ask("a", 40)
    made.ask("b", 60)

    assert [reasons(made.step()) for _ in range(2)] == [[([TOKEN], None)], [([TOKEN], None)]]
    assert not made.scheduler._marked
