import json
from typing import Any

import httpx

from baton.deploy.embedded_model.corpus import END
from tests.e2e.parity.compare import differences


def whole(body: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=body)


def stream(*texts: str, end: str = "data: [DONE]\n\n") -> httpx.Response:
    """A stream of chunks of a completion, each with as many token ids as letters."""
    choices = [[{"index": 0, "text": text, "token_ids": [*map(ord, text)], "logprobs": None}] for text in texts]
    events = [{"id": "cmpl-a", "created": 1, "choices": each} for each in choices]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream; charset=utf-8"})


def wheres(ours: httpx.Response, plain: httpx.Response) -> list[str]:
    return [difference.where for difference in differences(ours, plain)]


def test_each_difference_is_named() -> None:
    """A value, a missing field, a field too many, a type, a length, the status; logprobs may differ as float32 does."""
    ours = {"a": [{"x": 1}, {"x": 2}], "extra": 1, "kind": 1, "list": [1], "p": [-1.0, -1.0]}
    plain = {"a": [{"x": 1}, {"x": 3}], "missing": None, "kind": True, "list": [1, 2], "p": [-1.0004, -1.004]}

    assert wheres(whole(ours), whole(plain, 400)) == ["status", "a[].x", "missing", "kind", "list[]", "p[]", "extra"]


def test_streams_are_compared_as_a_whole() -> None:
    """It does not matter where one is cut; what it says, and its end, do."""
    assert wheres(stream("ab", "c"), stream("a", "bc")) == []
    assert wheres(stream("abc"), stream("a", "bd")) == ["events[].choices.0.text", "events[].choices.0.token_ids[]"]
    assert wheres(stream("a"), stream("a", end="")) == ["last"]


def test_the_logprob_of_an_answers_end_may_be_absent() -> None:
    """The end's is left out by vLLM if it has a chunk of its own; that of another token is missed."""
    text, end = [{"token": token, "logprob": -0.5} for token in ("harbour", END)]

    assert wheres(whole({"logprobs": [text, end]}), whole({"logprobs": [text]})) == []
    assert wheres(whole({"logprobs": [text]}), whole({"logprobs": [text, end]})) == []
    assert wheres(whole({"logprobs": [text, text]}), whole({"logprobs": [text]})) == ["logprobs[]"]
    assert wheres(whole({"logprobs": [text, end, end]}), whole({"logprobs": [text]})) == ["logprobs[]"]
