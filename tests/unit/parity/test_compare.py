import json
from typing import Any

import httpx

from tests.e2e.parity.compare import differences, folded


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


def test_ids_and_times_do_not_count() -> None:
    """Whatever else is equal is equal."""
    assert wheres(whole({"id": "cmpl-1", "created": 1, "n": 2}), whole({"id": "cmpl-2", "created": 9, "n": 2})) == []


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


def test_pieces_of_tool_calls_are_joined_by_index() -> None:
    """Arguments grow, names do not."""

    def delta(**call: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **call}]}}]}

    text = stream(delta(id="call_1", function={"name": "f", "arguments": "{"}), delta(function={"arguments": "}"})).text

    [event] = folded(text)["events"]
    assert event["choices"]["0"]["delta"]["tool_calls"]["0"]["function"] == {"name": "f", "arguments": "{}"}


def test_named_events_are_joined_while_they_are_about_the_same_thing() -> None:
    """Deltas of one block in a row; the rest stays as it came."""
    events = [("start", {"index": 0}), ("more", {"index": 0, "delta": {"text": "a"}})]
    events += [("more", {"index": 0, "delta": {"text": "b"}}), ("more", {"index": 1, "delta": {"text": "c"}})]
    text = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)

    made = folded(text)

    assert [(event["event"], event.get("delta")) for event in made["events"]] == [
        ("start", None),
        ("more", {"text": "ab"}),
        ("more", {"text": "c"}),
    ]
    assert made["last"] == "more"


def test_answers_of_one_stream_may_take_turns_in_another_order() -> None:
    """Usage so far belongs to the answer that it came with."""

    def at(index: int, tokens: int) -> dict[str, Any]:
        return {"choices": [{"index": index, "text": "a"}], "usage": {"prompt_tokens": tokens}}

    assert wheres(stream(at(0, 3), at(1, 5)), stream(at(1, 5), at(0, 3))) == []
    assert wheres(stream(at(0, 3), at(1, 5)), stream(at(0, 3), at(1, 3))) == ["events[].choices.1.usage.prompt_tokens"]
