"""All that a stream's events say, as one value: how many tokens come in one event depends on how busy a server is."""

import json
from typing import Any

_TEXTS = ("text", "content", "reasoning", "thinking", "partial_json", "arguments", "delta")
_OF_ONE_NODE = ("id", "created", "system_fingerprint", "item_id", "created_at", "call_id")


def joined_stream(stream: bytes) -> dict[str, Any]:
    """Return what a client has at the end, but for ids and times, which are a node's own."""
    found: dict[str, Any] = {"names": []}
    for event in filter(None, stream.split(b"\n\n")):
        assert not event.startswith(b":"), event
        name, _, data = event.rpartition(b"data: ")
        if data == b"[DONE]":
            found["names"].append(data)
            continue
        body = _without_names(json.loads(data))
        if name:
            found["names"] += [name] if ".delta" not in name.decode() and b"_delta" not in name else []
            place = name, body.get("index"), body.get("output_index"), body.get("content_index")
            found[str(place)] = _joined(found.get(str(place)), body)
            continue
        choices = {str(choice.pop("index")): choice for choice in body.pop("choices")}
        for choice in choices.values():
            calls = choice.get("delta", {}).pop("tool_calls", None) or []
            choice["calls"] = {str(call.pop("index")): call for call in calls}
        found = _joined(found, {**body, "choices": choices})
    result: dict[str, Any] = _rounded(found)
    return result


def _without_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_names(each) for name, each in value.items() if name not in _OF_ONE_NODE}
    return [_without_names(each) for each in value] if isinstance(value, list) else value


def _joined(first: Any, second: Any, name: str = "") -> Any:
    """What two events say together: texts and lists go on, of all else the last word counts."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(second, dict) and isinstance(first, dict):
        return {key: _joined(first.get(key), second.get(key), key) for key in first | second}
    if isinstance(second, list) or (name in _TEXTS and isinstance(second, str)):
        return first + second
    return second


def _rounded(value: Any) -> Any:
    """The same with log probabilities as exact as they are."""
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items() if key != "sequence_number"}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
