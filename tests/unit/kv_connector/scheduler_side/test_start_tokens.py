"""Delivering the tokens that a request starts with, over a stand-in for vLLM's scheduler; `tests/e2e/test_first_token.py` has the real one."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs

from baton.kv_connector.protocol.messages import SampledToken
from baton.kv_connector.scheduler_side.start_tokens import StartTokens, start_with

TOKENS = [SampledToken(id=7, logprob_ids=(7, 3), logprobs=(-0.5, -1.0), rank=1), SampledToken(id=8)]


class Connector:
    """Counts the ends of steps; a scheduler looks at its class when a request ends."""

    def __init__(self) -> None:
        self.steps = 0

    def take_events(self) -> list[Any]:
        self.steps += 1
        return []

    def get_kv_connector_stats(self) -> Any:
        return "of a step"


class Base:
    """As much of vLLM's scheduler as the mixin touches."""

    def __init__(self) -> None:
        self.connector = Connector()
        self.log_stats = True
        self.requests: dict[str, Any] = {}
        self.finished_recving_kv_req_ids: set[str] = set()
        self.seen: list[tuple[str, list[int], Any, bool]] = []
        self.num_lookahead_tokens = 2
        self.kv_cache_manager = SimpleNamespace(
            allocate_slots=self.allocate, cache_blocks=lambda *asked: self.cached.append(asked[1])
        )
        self.structured_output_manager = SimpleNamespace(accept_tokens=None)
        self.free = True
        self.stop = 0  # a token that ends a request
        self.step: Any = None  # that is scheduled
        self.asked: list[Any] = []
        self.cached: list[int] = []

    def allocate(self, *asked: Any, **more: Any) -> Any:
        self.asked.append((*asked[1:], more))
        return [] if self.free else None

    def schedule(self) -> Any:
        return self.step

    def update_from_output(self, step: Any, output: Any) -> dict[int, EngineCoreOutputs]:
        self.connector.take_events()
        if output.kv_connector_output is not None:
            self.finished_recving_kv_req_ids |= output.kv_connector_output.finished_recving
            return {0: EngineCoreOutputs(outputs=["others"], finished_requests={"other"})}
        assert type(self.connector) is Connector
        assert self.connector.get_kv_connector_stats() is None
        (name,) = step.num_scheduled_tokens
        request, tokens = self.requests[name], output.sampled_token_ids[0]
        request.num_in_flight_tokens -= 1
        request.num_stale_output_tokens -= 1
        request.tokens += tokens
        request.finished = tokens == [self.stop]
        self.seen.append((name, tokens, output.logprobs, self.log_stats))
        ended = {name} if request.finished else None
        return {0: EngineCoreOutputs(outputs=[f"{name}: {tokens[0]}"], finished_requests=ended)}


class Ours(StartTokens, Base):
    """With the mixin."""


class Request:
    """vLLM's `Request`."""

    def __init__(self) -> None:
        self.request_id = "r"
        self.tokens: list[int] = []
        self.finished = False
        self.num_in_flight_tokens = self.num_stale_output_tokens = 0
        self.events: list[Any] = []
        self.num_tokens = self.num_computed_tokens = 32
        self.structured_output_request: Any = None
        self.totals = {"started": 0}

    def is_finished(self) -> bool:
        return self.finished

    def record_event(self, kind: Any, _at_s: float) -> None:
        self.events.append(kind)


def received(*names: str) -> Any:
    """The output of a step in which requests' KV has come."""
    return SimpleNamespace(kv_connector_output=SimpleNamespace(finished_recving=set(names)))


@pytest.fixture
def scheduler() -> Ours:
    """With one request that waits for its KV, to start with tokens."""
    made = Ours()
    made.requests["r"] = request = Request()
    start_with(request, TOKENS, request.totals)
    return made


def test_tokens_come_with_the_step_that_brought_the_kv(scheduler: Ours) -> None:
    """In order, behind what the step itself says; and once. No step is counted for them; what the request waited ends with its first token."""
    request = scheduler.requests["r"]

    outputs = scheduler.update_from_output(None, received("r"))

    assert outputs[0].outputs == ["others", "r: 7", "r: 8"]
    assert (request.num_in_flight_tokens, request.num_stale_output_tokens) == (0, 0)
    first, second = (logprobs for _, _, logprobs, _ in scheduler.seen)
    assert (first.logprob_token_ids.tolist(), first.logprobs.tolist()) == ([[7, 3]], [[-0.5, -1.0]])
    assert second is None
    assert (scheduler.connector.steps, scheduler.connector.get_kv_connector_stats()) == (1, "of a step")
    assert [logs for *_, logs in scheduler.seen] == [False, False]
    assert scheduler.log_stats
    assert request.events == [EngineCoreEventType.SCHEDULED]
    scheduler.update_from_output(None, received("r"))
    assert (request.tokens, request.totals["started"], scheduler.cached) == ([7, 8], 1, [32])


def test_a_request_that_its_first_token_ends_is_told_with_those_that_the_step_ended(scheduler: Ours) -> None:
    """Engines that share clients name to each client what has ended; the request's KV is not waited for again."""
    scheduler.stop = 7

    outputs = scheduler.update_from_output(None, received("r"))

    assert outputs[0].outputs == ["others", "r: 7"]
    assert outputs[0].finished_requests == {"other", "r"}
    assert scheduler.finished_recving_kv_req_ids == set()


def test_without_a_block_for_its_first_step_a_request_starts_with_nothing(scheduler: Ours) -> None:
    """It would hold the blocks of its prompt and wait for one more, as would all others in its place: none could run."""
    scheduler.free = False
    request = scheduler.requests["r"]

    scheduler.update_from_output(None, received("r"))

    assert scheduler.asked == [(2, {"num_lookahead_tokens": 2, "delay_cache_blocks": True})]
    assert (request.tokens, request.totals["started"], request.num_in_flight_tokens) == ([], 0, 0)


def test_an_older_vllm_looks_at_the_prompt_s_reasoning_first(scheduler: Ours) -> None:
    """Before 0.30: a grammar would not be advanced by the token, and begin again with the second."""
    looked: list[Any] = []
    scheduler.structured_output_manager = SimpleNamespace(should_fill_bitmask=looked.append)
    request = scheduler.requests["r"]
    request.structured_output_request = "a grammar"

    scheduler.update_from_output(None, received("r"))

    assert looked == [request]
    assert request.tokens == [7, 8]


@pytest.mark.parametrize(
    ("known", "outputs", "said"), [(None, 2, [1, 2, 3]), (None, 0, None), ([1, 2], 2, [1, 2])], ids=str
)
def test_a_worker_that_is_not_told_the_tokens_of_a_request_learns_them_when_it_has_started(
    scheduler: Ours, known: list[int] | None, outputs: int, said: list[int] | None
) -> None:
    """Of the V1 runner; vLLM tells those that have the V2 runner. What has not started is as before."""
    scheduler.requests["r"] = SimpleNamespace(num_output_tokens=outputs, all_token_ids=(1, 2, 3))
    scheduler.step = SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id="r", prefill_token_ids=known)])

    (new,) = scheduler.schedule().scheduled_new_reqs

    assert new.prefill_token_ids == said


def test_a_request_that_has_gone_gets_none(scheduler: Ours) -> None:
    """Aborted while its KV was on its way: vLLM may still have it, or not."""
    scheduler.requests["r"].finished = True

    scheduler.update_from_output(None, received("r", "gone"))

    assert scheduler.seen == []
