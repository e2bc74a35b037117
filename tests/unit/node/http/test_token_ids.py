"""Tokens named in a stream: what is taken from vLLM's output processor, and where it stands."""

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector, RequestState

from baton.contracts.kv_transfer import CHOICE, FIELD
from baton.node.http.asgi import Message
from baton.node.http.one_by_one import OneByOne
from baton.node.http.token_ids import TokenLog, choice_of, logged, name_tokens, tap_outputs
from tests.support.asgi import Exchange

SIGNED = {FIELD: {"baton": {}}, "other": 1}


class Made(NamedTuple):
    """vLLM's processor with our hooks, its requests' states played."""

    processor: Any
    outputs: list[tuple[Any, ...]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    processor: Any = object.__new__(OutputProcessor)
    processor.request_states = {}
    outputs: list[tuple[Any, ...]] = []

    def add_request(self: Any, request: Any, _prompt: Any, _parent: Any, index: int, queue: Any = None) -> None:
        if request.external_req_id is not None:
            self.request_states[request.request_id] = object.__new__(RequestState)
        outputs.append((index, queue))

    monkeypatch.setattr(OutputProcessor, "add_request", add_request)
    monkeypatch.setattr(RequestState, "make_request_output", lambda _self, *given, **named: (*given, named))
    tap_outputs()
    tap_outputs()
    return Made(processor, outputs)


def asked(name: str = "cmpl-x-0", sampling: Any = None) -> Any:
    return SimpleNamespace(request_id=f"{name}-12345678", external_req_id=name, sampling_params=sampling)


def parent(answers: int) -> Any:
    return SimpleNamespace(n=answers)


def says(made: Made, request: Any, ids: list[int], reason: FinishReason | None = None, **named: Any) -> Any:
    return made.processor.request_states[request.request_id].make_request_output(ids, None, reason, None, **named)


async def test_tokens_go_into_the_log_of_their_http_request(made: Made) -> None:
    """Whichever task the engine's output is handled in, and however vLLM calls the method."""
    log, other = TokenLog(), TokenLog()

    async def arrive(mine: TokenLog | None, *requests: Any) -> None:
        with logged(mine):
            for index, request in enumerate(requests):
                await asyncio.sleep(0)
                made.processor.add_request(request, "text", parent(2), index, "queue")

    a, b, c = asked("chatcmpl-a"), asked("chatcmpl-b"), asked("chatcmpl-c")
    a.request_id, b.request_id = "0_a", "1_a"
    await asyncio.gather(arrive(log, a, b), arrive(other, c), arrive(None, asked("chatcmpl-d")))

    assert says(made, a, [7, 8]) == ([7, 8], None, None, None, {})
    assert says(made, b, [9], kv_transfer_params=None)[-1] == {"kv_transfer_params": None}
    says(made, a, [10])
    says(made, asked("chatcmpl-d"), [11])
    state = made.processor.request_states[c.request_id]
    state.make_request_output(new_token_ids=[], pooling_output=None, finish_reason=FinishReason.ABORT, stop_reason=None)

    assert log.take() == b": baton tokens 0 7,8,10\n: baton tokens 1 9\n"
    assert (log.take(), other.take()) == (b"", b"")
    assert sorted(made.outputs) == [(0, "queue"), (0, "queue"), (0, "queue"), (1, "queue")]


@pytest.mark.parametrize(
    ("reason", "goes_on"),
    [
        (None, True),
        (FinishReason.ABORT, True),
        (FinishReason.STOP, False),
        (FinishReason.LENGTH, False),
        (FinishReason.ERROR, False),
    ],
)
def test_a_log_knows_whether_the_answer_has_ended(made: Made, reason: FinishReason | None, goes_on: bool) -> None:
    """The abort is how a prefill node ends what another node goes on with."""
    log = TokenLog()
    with logged(log):
        made.processor.add_request(request := asked(), "text")
    says(made, request, new := [1], reason)
    new.clear()  # vLLM may use its list again

    assert log.goes_on is goes_on
    assert log.take() == b": baton tokens 0 1\n"


@pytest.mark.parametrize(
    ("request_id", "answers", "answer", "choice"),
    [
        ("cmpl-x-0", 1, 0, 0),
        ("cmpl-x-2", 1, 0, 2),
        ("cmpl-a-7-2", 3, 1, 7),
        ("chatcmpl-x-2", 3, 1, 1),
        ("resp_7", 1, 0, 0),
        ("cmpl-7_0", 1, 0, 0),
        ("", 1, 0, 0),
    ],
)
def test_choices_are_numbered_as_the_server_does(request_id: str, answers: int, answer: int, choice: int) -> None:
    """Answers to the second prompt come after those to the first; the client chooses what stands in the middle of an id."""
    assert choice_of(request_id, answers, answer) == choice


def test_the_connector_learns_the_choice(made: Made) -> None:
    """In a copy: vLLM's several answers share their parameters, and the client's stay as they are."""
    shared = SamplingParams(seed=5, extra_args=dict(SIGNED))
    requests = [asked("cmpl-x-1", shared) for _ in range(2)]

    with logged(TokenLog()):
        for index, request in enumerate(requests):
            made.processor.add_request(request, "text", parent(2), index)

    assert [request.sampling_params.extra_args for request in requests] == [
        {**SIGNED, CHOICE: 2},
        {**SIGNED, CHOICE: 3},
    ]
    assert [request.sampling_params.seed for request in requests] == [5, 5]
    assert shared.extra_args == SIGNED


@pytest.mark.parametrize(("extra", "log"), [(None, TokenLog()), ({"other": 1}, TokenLog()), (SIGNED, None)])
def test_other_requests_keep_their_parameters(made: Made, extra: dict[str, Any] | None, log: TokenLog | None) -> None:
    """Without signed parameters no tokens are named; without a log there are none."""
    given = SamplingParams(extra_args=extra)
    with logged(log):
        made.processor.add_request(request := asked(sampling=given), "text")

    assert request.sampling_params is given
    assert (vars(made.processor.request_states[request.request_id]) == {}) == (log is None)


@pytest.mark.parametrize("starts", [True, False])
def test_outputs_of_an_answer_that_starts_with_tokens_are_not_merged(
    made: Made, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    queue = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    monkeypatch.setattr(RequestState, "queue", queue, raising=False)
    with logged(log := TokenLog(one_by_one=starts)):
        made.processor.add_request(asked(), "text")

    assert isinstance(queue, OneByOne) == starts
    if isinstance(queue, OneByOne):
        assert queue._taken == log.read


def test_each_prompt_has_one_answer_unless_more_are_asked_for(made: Made) -> None:
    with logged(log := TokenLog()):
        made.processor.add_request(request := asked("cmpl-x-2"), "text")
    says(made, request, [7])

    assert log.take() == b": baton tokens 2 7\n"


def test_a_log_goes_on_until_every_choice_has_ended() -> None:
    log = TokenLog()
    log.add(0, [1], ended=False)
    log.add(1, [2], ended=True)
    went_on = log.goes_on
    log.add(0, [], ended=True)

    assert (went_on, log.goes_on) == (True, False)


def test_a_request_that_vllm_does_not_keep_is_left_alone(made: Made) -> None:
    with logged(TokenLog()):
        made.processor.add_request(SimpleNamespace(request_id="r", external_req_id=None, sampling_params=None), None)

    assert made.processor.request_states == {}


def head(status: int = 200, kind: bytes = b"text/event-stream; charset=utf-8") -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"Content-Type", kind)]}


def body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def sent_of(log: TokenLog, *messages: Message | tuple[int, list[int]]) -> list[bytes]:
    """Send messages, and have tokens come in between; return the bodies."""
    exchange = Exchange({})
    named = name_tokens(exchange.send, log)
    for message in messages:
        if isinstance(message, tuple):
            log.add(message[0], message[1], ended=False)
        else:
            await named(message)
    return [message["body"] for message in exchange.sent if "body" in message]


async def test_tokens_stand_before_the_next_event() -> None:
    """Once; those of text that is held back too. The empty end of a body stays empty."""
    pieces = (head(), body(b"data: 0\n\n"), (0, [5]), (2, [6, 7]), (0, [8]), body(b"data: 1\n\n"), body(b"data: 2\n\n"))

    assert await sent_of(TokenLog(), *pieces, (0, [9]), body(b"", more=False)) == [
        b"data: 0\n\n",
        b": baton tokens 0 5,8\n: baton tokens 2 6,7\ndata: 1\n\n",
        b"data: 2\n\n",
        b"",
    ]


@pytest.mark.parametrize("start", [head(kind=b"application/json"), head(500), {**head(), "headers": []}])
async def test_other_bodies_are_untouched(start: Message) -> None:
    assert await sent_of(TokenLog(), start, (0, [5]), body(b"{}")) == [b"{}"]
