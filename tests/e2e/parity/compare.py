"""How two answers to the same request differ. Ids and times are masked; a stream's events are folded together first.

vLLM may put several tokens into one event, so that streams are compared by what they add up to, choice by choice and event
kind by event kind, not by where they are cut. Where they are cut decides of one thing, in vLLM too: a stream of
`/v1/responses` with a parser has the logprob of the token that ends the answer if that token shares its chunk with text.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx

from baton.deploy.embedded_model.corpus import END

TOLERANCE: Final = 1e-3  # of logprobs
_MASKED: Final = frozenset(("created", "created_at", "completed_at", "sequence_number"))
_ID: Final = re.compile(r"^(chatcmpl|cmpl|resp|msg|call|rs|fc|chatcmpl-tool|generate-tokens|ctc)[-_][\w-]+$")
_GROWS: Final = frozenset(("content", "text", "arguments", "reasoning", "partial_json", "thinking", "delta"))


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which two answers differ; indices are left out of it."""

    where: str
    ours: Any
    plain: Any

    def __str__(self) -> str:
        return f"{self.where}: {_short(self.ours)} here, {_short(self.plain)} there"


def differences(ours: httpx.Response, plain: httpx.Response) -> list[Difference]:
    """Compare status, kind of body and body."""
    pairs = [("status", ours.status_code, plain.status_code), ("content-type", _kind(ours), _kind(plain))]
    found = [Difference(where, mine, theirs) for where, mine, theirs in pairs if mine != theirs]
    return [*found, *_compare("", understood(ours), understood(plain))]


def understood(answer: httpx.Response) -> Any:
    """Return an answer's body as plain data: masked, and a stream folded."""
    if _kind(answer) == "text/event-stream":
        return masked(folded(answer.text))
    try:
        return masked(answer.json())
    except json.JSONDecodeError:
        return answer.text


def masked(value: Any) -> Any:
    """Replace what no two servers have in common."""
    if isinstance(value, dict):
        return {key: "<masked>" if key in _MASKED and item is not None else masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return "<id>" if isinstance(value, str) and _ID.match(value) else value


def folded(text: str) -> dict[str, Any]:
    """Fold a stream: events of one kind, in a row and about the same thing, become one."""
    events: list[dict[str, Any]] = []
    last = ""
    for block in text.split("\n\n"):
        lines = dict(line.partition(": ")[::2] for line in block.splitlines())
        if "data" not in lines:
            continue
        last = lines.get("event", "")
        if lines["data"] == "[DONE]":
            last = "[DONE]"
            continue
        _fold(events, {"event": last, **json.loads(lines["data"])})
    return {"events": events, "last": last}


def _fold(events: list[dict[str, Any]], event: dict[str, Any]) -> None:
    if "choices" in event:
        if event["choices"] and "usage" in event:  # so far, of these: answers may take turns in another order
            event["choices"][-1]["usage"] = event.pop("usage")
        event["choices"] = {str(choice["index"]): choice for choice in event["choices"]}
        key = (event["event"], bool(event["choices"]))
        same = next((old for old in events if (old["event"], bool(old.get("choices"))) == key), None)
    else:
        places = ("event", "index", "output_index", "content_index")
        is_last = bool(events) and "delta" in event and all(events[-1].get(at) == event.get(at) for at in places)
        same = events[-1] if is_last else None
    if same is None:
        events.append(_joined({}, event))
    else:
        same.update(_joined(same, event))


def _joined(old: Any, new: Any, name: str = "") -> Any:
    """Return what two pieces of an answer add up to."""
    if isinstance(new, dict) and isinstance(old, dict | None):
        known = old or {}
        keys = [*known, *(key for key in new if key not in known)]
        return {key: _joined(known.get(key), new[key], key) if key in new else known[key] for key in keys}
    if isinstance(new, list) and name == "tool_calls":
        calls = {str(call["index"]): call for call in new}
        return _joined(old or {}, calls)
    if isinstance(new, list) and isinstance(old, list) and name != "prompt_token_ids":
        return old + new
    if isinstance(new, str) and isinstance(old, str) and name in _GROWS:
        return old + new
    return old if new is None else new


def _compare(where: str, ours: Any, plain: Any) -> Iterator[Difference]:
    if isinstance(ours, dict) and isinstance(plain, dict):
        for key in [*plain, *(key for key in ours if key not in plain)]:
            at = f"{where}.{key}" if where else key
            if key not in ours or key not in plain:
                yield Difference(at, ours.get(key, "<absent>"), plain.get(key, "<absent>"))
            else:
                yield from _compare(at, ours[key], plain[key])
    elif isinstance(ours, list) and isinstance(plain, list):
        yield from _compare_lists(f"{where}[]", ours, plain)
    elif _is_number(ours) and _is_number(plain) and isinstance(ours, float):
        if abs(ours - plain) > TOLERANCE:
            yield Difference(where, ours, plain)
    elif ours != plain or type(ours) is not type(plain):
        yield Difference(where, ours, plain)


def _compare_lists(where: str, ours: list[Any], plain: list[Any]) -> Iterator[Difference]:
    longer, shorter = (ours, plain) if len(ours) > len(plain) else (plain, ours)
    is_known = where.endswith("logprobs[]") and [each.get("token") for each in longer[len(shorter) :]] == [END]
    if len(ours) != len(plain) and not is_known:
        yield Difference(where, ours, plain)
    for mine, theirs in zip(ours, plain, strict=False):
        yield from _compare(where, mine, theirs)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(answer: httpx.Response) -> str:
    return str(answer.headers.get("content-type", "")).partition(";")[0]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"
