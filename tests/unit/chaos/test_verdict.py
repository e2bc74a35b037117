import json

import pytest

from tests.chaos.exchange import Ending, Exchange
from tests.chaos.verdict import Result, judge
from tests.chaos.workload import Reference

REFERENCE = Reference(prompt=(1, 2), tokens=(5, 6, 7, 8), logprobs=(-0.1, -0.2, -0.3, -0.4))
ERROR = {"error": {"message": "the node is gone", "type": "upstream_error", "param": None, "code": 502}}
RIGHT = ([5, 6], [-0.1, -0.2])


def whole(tokens: list[int], logprobs: list[float]) -> bytes:
    return json.dumps({"choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}]}).encode()


def stream(tokens: list[int], logprobs: list[float], end: str = "[DONE]") -> bytes:
    """A stream with an event for each token, and what stands behind them."""
    events = [whole([token], [logprob]).decode() for token, logprob in zip(tokens, logprobs, strict=True)]
    return "".join(f"data: {event}\n\n" for event in [*events, end] if event).encode()


def result(body: bytes, *, streamed: bool, status: int = 200, ending: Ending = Ending.COMPLETE) -> Result:
    """What is made of an exchange that has ended, and for which two tokens were asked."""
    made = Exchange("chaos-1", {})
    made.status, made.received, made.ending = status, bytearray(body), ending
    return judge(made, REFERENCE, 2, stream=streamed).result


@pytest.mark.parametrize(
    ("tokens", "logprobs", "found"),
    [
        (*RIGHT, Result.EXACT),
        ([5, 7], [-0.1, -0.2], Result.VIOLATION),
        ([5], [-0.1], Result.VIOLATION),
        ([], [], Result.VIOLATION),
        ([5, 6, 7], [-0.1, -0.2, -0.3], Result.VIOLATION),
        ([5, 6], [-0.1, -0.21], Result.VIOLATION),
    ],
    ids=["exact", "wrong token", "too short", "empty", "too long", "another logprob"],
)
def test_the_references_tokens_are_exact(tokens: list[int], logprobs: list[float], found: Result) -> None:
    """As many as were asked for; anything else with 200 is a violation, also the right ones from wrong KV."""
    assert result(whole(tokens, logprobs), streamed=False) is found
    assert result(stream(tokens, logprobs), streamed=True) is found


@pytest.mark.parametrize("body", [b"", b"{}", b"{", b"[]", b'{"choices": []}'])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_200_without_an_answer_is_a_violation(body: bytes, streamed: bool) -> None:
    assert result(body, streamed=streamed) is Result.VIOLATION


@pytest.mark.parametrize(
    ("token", "end", "found"),
    [(5, "", Result.VIOLATION), (5, json.dumps(ERROR), Result.ERROR), (6, json.dumps(ERROR), Result.VIOLATION)],
)
def test_a_stream_may_end_early_with_a_typed_error(token: int, end: str, found: Result) -> None:
    """The tokens before it must be right; without an error, however clean its end looks, it is a violation."""
    assert result(stream([token], [-0.1], end), streamed=True) is found


@pytest.mark.parametrize(("token", "found"), [(5, Result.LEFT), (7, Result.VIOLATION)])
def test_what_a_client_had_when_it_left_must_be_right_too(token: int, found: Result) -> None:
    """Of a stream: its whole events; the last may be torn."""
    torn = stream([token], [-0.1], "") + b'data: {"choi'

    assert result(torn, streamed=True, ending=Ending.LEFT) is found


def test_a_refusal_must_have_openais_shape() -> None:
    """Message and type; a bare text or an empty body will not do."""
    assert result(json.dumps(ERROR).encode(), status=502, streamed=False) is Result.ERROR
    for body in (b"", b"Internal Server Error", b'{"detail": "no"}', b'{"error": {"message": ""}}', b'{"error": "no"}'):
        assert result(body, status=502, streamed=False) is Result.VIOLATION


@pytest.mark.parametrize(
    ("ending", "found"),
    [(Ending.CUT, Result.CUT), (Ending.UNREACHABLE, Result.CUT), (Ending.HUNG, Result.VIOLATION)],
)
def test_a_lost_connection_is_told_from_an_answer(ending: Ending, found: Result) -> None:
    """Whether that is allowed depends on the node that was struck; a request without an answer in time hangs."""
    assert result(whole(*RIGHT), ending=ending, streamed=False) is found
