"""Events of chats and completions: what is new in them. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.resume.events import DONE, ERROR, parse
from baton.proxy.resume.known import Key, Known
from baton.proxy.resume.record import Dialect

_TEXTS: Final = ("content", "reasoning", "reasoning_content", "refusal", "text")
# What a prefill node ends its part with (`relays` of `contracts/kv_transfer.py`); no text can hold it, a string's
# quotes are escaped.
_PART_ENDS: Final = b'"finish_reason":"abort"'


class ChatEvents(Dialect):
    last_events = (DONE,)
    failure_events = (ERROR,)

    def __init__(self) -> None:
        self._calls: dict[Key, str] = {}  # the ids of tool calls that the client has
        self._theirs: dict[str, str] = {}  # the leg's → the client's

    def failure_in(self, event: bytes) -> StreamBrokenError | None:
        error = parse(event)["error"]
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(code, int) and code >= 500:
            return StreamBrokenError(FailureKind.STATUS, f"it sent an error {code}")
        return None

    def ends_prefill_part(self, event: bytes) -> bool:
        return _PART_ENDS in event

    def begin_leg(self, _is_further: bool) -> None:
        self._theirs.clear()

    def renamed(self) -> Mapping[str, str]:
        return self._theirs

    def names_in(self, body: dict[str, Any]) -> dict[str, object]:
        return {name: body[name] for name in ("id", "created") if name in body}

    def take_new(self, body: dict[str, Any], known: Known) -> bool:
        self._name_calls(body)
        new = [choice for choice in body["choices"] if _take_choice(choice, known)]
        if not body["choices"]:
            return not body.get("usage") or known.is_new(("usage",))
        _take_prompt(body, ("prompt",), known)  # of a chat
        body["choices"] = new
        return bool(new)

    def _name_calls(self, body: dict[str, Any]) -> None:
        """Give tool calls the ids that the client knows: each node draws them."""
        for choice in body["choices"]:
            for call in choice.get("delta", {}).get("tool_calls") or ():
                if theirs := call.get("id"):
                    ours = self._calls.setdefault((choice["index"], call["index"]), theirs)
                    if ours != theirs:
                        self._theirs[theirs] = call["id"] = ours


def _take_choice(choice: dict[str, Any], known: Known) -> bool:
    index, touched = choice["index"], len(known.touched)
    said = choice.get("delta", choice)
    is_new = [
        _take_texts(said, index, known),
        "role" in said and _take_role(said, index, known),
        bool(said.get("tool_calls")) and _take_calls(said, index, known),
        bool(choice.get("logprobs")) and _take_logprobs(choice, index, known),
        bool(choice.get("token_ids")) and _take_ids(choice, index, known),
        choice.get("finish_reason") is not None and known.is_new((index, "finish")),
    ]
    _take_prompt(choice, (index, "prompt"), known)  # of a completion
    if len(known.touched) == touched:
        known.take_entries((index, "empty"), 1)  # the client gets as many as one server would send
    return any(is_new)


def _take_prompt(holder: dict[str, Any], key: Key, known: Known) -> None:
    if holder.get("prompt_token_ids") and not known.is_new(key):
        holder["prompt_token_ids"] = None


def _take_texts(said: dict[str, Any], index: int, known: Known) -> bool:
    is_new = False
    for name in _TEXTS:
        if piece := said.get(name):
            said[name] = known.take_text((index, name), piece)
            is_new = is_new or bool(said[name])
    return is_new


def _take_role(said: dict[str, Any], index: int, known: Known) -> bool:
    if known.is_new((index, "role")):
        return True
    del said["role"]
    return False


def _take_calls(said: dict[str, Any], index: int, known: Known) -> bool:
    left = []
    for call in said["tool_calls"]:
        key, function = (index, "call", call["index"]), call.get("function") or {}
        is_new = bool(function.get("name")) and known.is_new(key, function["name"])
        if piece := function.get("arguments"):
            function["arguments"] = known.take_text((*key, "arguments"), piece)
        if function.get("name") and not is_new:
            for name in ("id", "type"):
                call.pop(name, None)
            del function["name"]
        if is_new or function.get("arguments"):
            left.append(call)
    said["tool_calls"] = left
    return bool(left)


def _take_logprobs(choice: dict[str, Any], index: int, known: Known) -> bool:
    logprobs = choice["logprobs"]
    lists = {name: many for name, many in logprobs.items() if isinstance(many, list)}
    count = len(lists.get("content", lists.get("tokens", ())))
    known_count = known.take_entries((index, "logprobs"), count)
    if known_count:
        choice["logprobs"] = logprobs | {name: many[known_count:] for name, many in lists.items()}
    return count > known_count


def _take_ids(choice: dict[str, Any], index: int, known: Known) -> bool:
    ids = choice["token_ids"]
    known_count = known.take_entries((index, "token_ids"), len(ids))
    choice["token_ids"] = ids[known_count:]
    return len(ids) > known_count
