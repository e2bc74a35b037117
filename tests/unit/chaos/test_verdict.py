import json

import pytest

from tests.chaos.exchange import Ending, Exchange
from tests.chaos.verdict import Result, judge
from tests.chaos.workload import Reference

REFERENCE = Reference(prompt=(1, 2), tokens=(5, 6, 7, 8), logprobs=(-0.1, -0.2, -0.3, -0.4))
ERROR = json.dumps({"error": {"message": "the node is gone", "type": "upstream_error", "param": None, "code": 502}})
RIGHT = ([5, 6], [-0.1, -0.2])
SHAPELESS = (b"", b"Internal Server Error", b'{"detail": "no"}', b'{"error": {"message": ""}}', b'{"error": "no"}')


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
        ([5, 7], [-0.1, -0.2], Result.VIOLATION),  # a wrong token
        ([5], [-0.1], Result.VIOLATION),
        ([], [], Result.VIOLATION),
        ([5, 6, 7], [-0.1, -0.2, -0.3], Result.VIOLATION),
        ([5, 6], [-0.1, -0.21], Result.VIOLATION),  # the right tokens from wrong KV
    ],
)
def test_the_references_tokens_are_exact(tokens: list[int], logprobs: list[float], found: Result) -> None:
    """As many as were asked for; anything else with 200 is a violation."""
    assert result(whole(tokens, logprobs), streamed=False) is found
    assert result(stream(tokens, logprobs), streamed=True) is found


def test_a_stream_may_end_early_with_a_typed_error() -> None:
    """The tokens before it must be right; without an error, however clean its end looks, it is a violation."""
    for token, end, found in ((5, "", Result.VIOLATION), (5, ERROR, Result.ERROR), (6, ERROR, Result.VIOLATION)):
        assert result(stream([token], [-0.1], end), streamed=True) is found
    for body in (b"", b"{}", b"{", b"[]", b'{"choices": []}'):
        assert result(body, streamed=False) is result(body, streamed=True) is Result.VIOLATION


def test_a_refusal_must_have_openais_shape() -> None:
    """Message and type; a bare text or an empty body will not do."""
    assert result(ERROR.encode(), status=502, streamed=False) is Result.ERROR
    assert {result(body, status=502, streamed=False) for body in SHAPELESS} == {Result.VIOLATION}


def test_a_lost_connection_is_told_from_an_answer() -> None:
    """Whether it may be lost depends on the node that was struck; a request that nothing answers hangs.

    What a client had when it left must be right too: of a stream, its whole events; the last may be torn.
    """
    for ending, found in ((Ending.CUT, Result.CUT), (Ending.UNREACHABLE, Result.CUT), (Ending.HUNG, Result.VIOLATION)):
        assert result(whole(*RIGHT), ending=ending, streamed=False) is found
    for token, found in ((5, Result.LEFT), (7, Result.VIOLATION)):
        torn = stream([token], [-0.1], "") + b'data: {"choi'
        assert result(torn, streamed=True, ending=Ending.LEFT) is found
