import json
from typing import Any

import httpx

from tests.e2e.parity.compare import differences


def whole(body: Any, status: int = 200) -> httpx.Response:
    """An answer that is no stream."""
    return httpx.Response(status, json=body)


def stream(*events: Any, done: bool = True) -> httpx.Response:
    """A stream of chunks."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ("data: [DONE]\n\n" if done else "")
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream; charset=utf-8"})


def chunk(text: str, **more: Any) -> dict[str, Any]:
    """One chunk of a completion."""
    return {"id": "cmpl-a", "created": 1, "choices": [{"index": 0, "text": text, "logprobs": None, **more}]}


def wheres(ours: httpx.Response, plain: httpx.Response) -> list[str]:
    """Where two answers differ."""
    return [difference.where for difference in differences(ours, plain)]


def test_each_difference_is_named() -> None:
    """A value, a missing field, a field too many, a type, a length, the status."""
    ours = {"a": [{"x": 1}, {"x": 2}], "extra": 1, "kind": 1, "list": [1]}
    plain = {"a": [{"x": 1}, {"x": 3}], "missing": None, "kind": True, "list": [1, 2]}

    assert wheres(whole(ours, 200), whole(plain, 400)) == ["status", "a[].x", "missing", "kind", "list[]", "extra"]


def test_logprobs_may_differ_a_little() -> None:
    """By as much as float32 does."""
    assert wheres(whole({"p": -1.0}), whole({"p": -1.0004})) == []
    assert wheres(whole({"p": -1.0}), whole({"p": -1.004})) == ["p"]


def test_it_does_not_matter_where_a_stream_is_cut() -> None:
    """Texts and lists are joined, the last value of the rest counts."""
    ours = stream(chunk("ab", token_ids=[1, 2]), chunk("c", token_ids=[3], finish_reason="stop"))
    plain = stream(chunk("a", token_ids=[1]), chunk("bc", token_ids=[2, 3], finish_reason="stop"))

    assert wheres(ours, plain) == []
    assert wheres(ours, stream(chunk("abd", token_ids=[1, 2, 3], finish_reason="stop"))) == ["events[].choices.0.text"]


def test_a_streams_end_counts() -> None:
    """So does an event with usage."""
    assert wheres(stream(chunk("a")), stream(chunk("a"), done=False)) == ["last"]
    usage = {"id": "cmpl-a", "created": 1, "choices": [], "usage": {"total_tokens": 3}}
    assert wheres(stream(chunk("a")), stream(chunk("a"), usage)) == ["events[]"]
