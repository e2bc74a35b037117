import json
from typing import Any

import pytest

from tests.chaos.exchange import Ending, Exchange
from tests.chaos.verdict import Result, judge
from tests.chaos.workload import Reference

REFERENCE = Reference(prompt=(1, 2), tokens=(5, 6, 7, 8), logprobs=(-0.1, -0.2, -0.3, -0.4))
ERROR = {"error": {"message": "the node is gone", "type": "upstream_error", "param": None, "code": 502}}


def exchange(body: bytes, *, status: int = 200, ending: Ending = Ending.COMPLETE) -> Exchange:
    """An exchange that has ended."""
    made = Exchange("chaos-1", {})
    made.status, made.received, made.ending = status, bytearray(body), ending
    return made


def whole(tokens: list[int], logprobs: list[float]) -> bytes:
    """An unstreamed answer."""
    return json.dumps({"choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}]}).encode()


def stream(*events: Any) -> bytes:
    """A stream of events; texts as they are."""
    return "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events).encode()


def piece(token: int, logprob: float) -> dict[str, Any]:
    """One event with one token."""
    return {"choices": [{"token_ids": [token], "logprobs": {"token_logprobs": [logprob]}}]}


def result(found: Exchange, *, streamed: bool, max_tokens: int = 2) -> Result:
    """The verdict's result."""
    return judge(found, REFERENCE, max_tokens, stream=streamed).result


def test_the_references_tokens_are_exact() -> None:
    """An answer of so many tokens as were asked for, equal to the reference's first ones."""
    assert result(exchange(whole([5, 6], [-0.1, -0.2])), streamed=False) is Result.EXACT
    assert result(exchange(stream(piece(5, -0.1), piece(6, -0.2), "[DONE]")), streamed=True) is Result.EXACT


@pytest.mark.parametrize(
    ("tokens", "logprobs"),
    [([5, 7], [-0.1, -0.2]), ([5], [-0.1]), ([], []), ([5, 6, 7], [-0.1, -0.2, -0.3]), ([5, 6], [-0.1, -0.21])],
    ids=["wrong token", "too short", "empty", "too long", "another logprob"],
)
def test_anything_else_with_200_is_a_violation(tokens: list[int], logprobs: list[float]) -> None:
    """A wrong token, a missing one, one too many, or the right ones from wrong KV."""
    pieces = [piece(token, logprob) for token, logprob in zip(tokens, logprobs, strict=True)]

    assert result(exchange(whole(tokens, logprobs)), streamed=False) is Result.VIOLATION
    assert result(exchange(stream(*pieces, "[DONE]")), streamed=True) is Result.VIOLATION


@pytest.mark.parametrize("body", [b"", b"{}", b"{", b"[]", b'{"choices": []}'])
def test_a_200_without_an_answer_is_a_violation(body: bytes) -> None:
    """Streamed or not."""
    assert result(exchange(body), streamed=False) is Result.VIOLATION
    assert result(exchange(body), streamed=True) is Result.VIOLATION


def test_a_stream_that_ends_early_without_an_error_is_a_violation() -> None:
    """However clean its end looks."""
    assert result(exchange(stream(piece(5, -0.1))), streamed=True) is Result.VIOLATION


def test_a_stream_may_end_with_a_typed_error() -> None:
    """The tokens before it must be right."""
    assert result(exchange(stream(piece(5, -0.1), ERROR)), streamed=True) is Result.ERROR
    assert result(exchange(stream(piece(6, -0.1), ERROR)), streamed=True) is Result.VIOLATION


def test_a_refusal_must_have_openais_shape() -> None:
    """Message and type; a bare text or an empty body will not do."""
    assert result(exchange(json.dumps(ERROR).encode(), status=502), streamed=False) is Result.ERROR
    for body in (b"", b"Internal Server Error", b'{"detail": "no"}', b'{"error": {"message": ""}}', b'{"error": "no"}'):
        assert result(exchange(body, status=502), streamed=False) is Result.VIOLATION


@pytest.mark.parametrize("ending", [Ending.CUT, Ending.UNREACHABLE])
def test_a_lost_connection_is_told_from_an_answer(ending: Ending) -> None:
    """Whether that is allowed depends on who was struck, which the judge of one exchange does not know."""
    assert result(exchange(whole([5, 6], [-0.1, -0.2]), ending=ending), streamed=False) is Result.CUT


def test_whoever_is_not_answered_in_time_hangs() -> None:
    """Nothing waits without a bound."""
    assert result(exchange(b"", status=0, ending=Ending.HUNG), streamed=False) is Result.VIOLATION


def test_what_a_client_had_when_it_left_must_be_right_too() -> None:
    """Of a stream: its whole events; the last may be torn."""
    torn = stream(piece(5, -0.1)) + b'data: {"choi'
    wrong = stream(piece(7, -0.1)) + b'data: {"choi'

    assert result(exchange(torn, ending=Ending.LEFT), streamed=True) is Result.LEFT
    assert result(exchange(wrong, ending=Ending.LEFT), streamed=True) is Result.VIOLATION
