"""Requests that a prefill node's engine ends after their first token, over a stand-in for vLLM's scheduler."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import RequestStatus

from baton.kv_connector.scheduler_side import first_output
from baton.kv_connector.scheduler_side.first_output import END_AFTER_S, FirstOutput, end_after_first_token
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, SECRET, FakePool, request

CONTEXT = 100
CLIENT = 3


class Base:
    """As much of vLLM's scheduler as the mixin touches."""

    def __init__(self) -> None:
        self.max_model_len = CONTEXT
        self.next: list[EngineCoreOutput] = []

    def add_request(self, _request: Any) -> None:
        """Take it in."""

    def update_from_output(self, _step: Any, _output: Any) -> dict[int, EngineCoreOutputs]:
        """A step makes the outputs that a test has laid down."""
        made, self.next = self.next, []
        return {CLIENT: EngineCoreOutputs(outputs=made)} if made else {}

    def has_requests(self) -> bool:
        """Whether there is work."""
        return False


class Ours(FirstOutput, Base):
    """With the mixin."""


class Clock:
    """The time, in the module."""

    now = 10.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


class Asked(SimpleNamespace):
    """vLLM's `Request`."""

    def is_finished(self) -> bool:
        """Whether it has ended."""
        return bool(RequestStatus.is_finished(self.status))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stands until a test moves it."""
    made = Clock()
    monkeypatch.setattr(first_output, "time", made)
    return made


def asked(max_tokens: int = 20, **more: Any) -> Any:
    """A request."""
    return Asked(**{"request_id": "r", "max_tokens": max_tokens, "num_tokens": 41, "status": 0} | more)


def steps(
    scheduler: Ours, request: Any, status: RequestStatus, reason: FinishReason
) -> tuple[EngineCoreOutput, dict[int, Any]]:
    """A step in which a request ends; return its output, and all."""
    request.status = status
    scheduler.next = [
        EngineCoreOutput("other", [1], finish_reason=FinishReason.LENGTH),
        made := EngineCoreOutput("r", [7]),
    ]
    made.finish_reason = reason
    return made, scheduler.update_from_output(None, None)


def test_the_end_is_told_later_than_the_token(clock: Clock) -> None:
    """In a message of its own, to the server that has the request; until then the engine goes on stepping."""
    scheduler = Ours()
    end_after_first_token(request := asked())
    scheduler.add_request(request)
    assert request.max_tokens == 1

    told, outputs = steps(scheduler, request, RequestStatus.FINISHED_LENGTH_CAPPED, FinishReason.LENGTH)

    assert (told.new_token_ids, told.finish_reason) == ([7], None)
    assert outputs[CLIENT].outputs[0].finish_reason == FinishReason.LENGTH
    assert scheduler.has_requests()
    assert scheduler.update_from_output(None, None) == {}
    clock.now += END_AFTER_S
    ((client, later),) = scheduler.update_from_output(None, None).items()
    assert client == CLIENT
    assert later.outputs == [EngineCoreOutput("r", [], finish_reason=FinishReason.ABORT)]
    assert not scheduler.has_requests()


@pytest.mark.parametrize(
    ("more", "status", "reason"),
    [
        ({}, RequestStatus.FINISHED_STOPPED, FinishReason.STOP),
        ({}, RequestStatus.FINISHED_ERROR, FinishReason.ERROR),
        ({"max_tokens": 1}, RequestStatus.FINISHED_LENGTH_CAPPED, FinishReason.LENGTH),
        ({"num_tokens": CONTEXT}, RequestStatus.FINISHED_LENGTH_CAPPED, FinishReason.LENGTH),
    ],
)
def test_ends_of_the_answer_are_told_at_once(
    clock: Clock, more: dict[str, Any], status: RequestStatus, reason: FinishReason
) -> None:
    """The model's, the client's own, and that of a full context."""
    scheduler = Ours()
    end_after_first_token(request := asked(**more))
    scheduler.add_request(request)

    told, _ = steps(scheduler, request, status, reason)

    clock.now += 1
    assert told.finish_reason == reason
    assert scheduler.update_from_output(None, None) == {}
    assert not scheduler.has_requests()


def test_an_aborted_request_leaves_nothing(clock: Clock) -> None:
    """It ends without an output of a step."""
    scheduler = Ours()
    end_after_first_token(request := asked())
    scheduler.add_request(request)
    request.status = RequestStatus.FINISHED_ABORTED
    clock.now += 1

    assert scheduler.update_from_output(None, None) == {}
    assert scheduler._marked == []
    assert not scheduler.has_requests()


@pytest.mark.parametrize(
    ("sampling", "relays", "more", "max_tokens"),
    [
        ("d", True, {}, 1),
        ("d", False, {}, 20),
        ("d", True, {"prompt_embeds": "given"}, 1),
        ("", True, {}, 20),
    ],
)
def test_a_leg_that_is_the_beginning_of_a_stream_ends_early(
    sampling: str, relays: bool, more: dict[str, Any], max_tokens: int
) -> None:
    """Whatever its prompt is; an engine without our scheduler counts that it cannot."""
    side = PrefillScheduler(SECRET, BLOCK_TOKENS, sampling=sampling)
    side.bind_pool(FakePool(33))

    side.add_request(req := request("prefill", 40, relays=relays, **more))

    assert req.max_tokens == max_tokens
    assert side.snapshot()["refused"] == ({} if sampling or not relays else {"relay": 1})
