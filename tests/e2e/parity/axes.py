"""What requests are made of: named axes, which of their values go together, and the request that a case stands for."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, Final, NamedTuple

from tests.support.pairwise import Case, pairwise

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"

# More than a block of 128 tokens that many prompts have in common, so that `cached_tokens` is not always 0.
SHARED: Final = " ".join(f"On day {day} the keeper of the lighthouse walked to the harbour." for day in range(1, 22))
SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_PARAMETERS: Final = {"type": "object", "properties": {"place": {"enum": ["mill", "pier"]}}, "required": ["place"]}


class Asked(NamedTuple):
    path: str
    body: dict[str, Any]


_ERRORS: Final = [
    *("none", "unknown_model", "no_model", "no_prompt", "negative_max_tokens", "float_max_tokens"),
    *("text_temperature", "high_temperature", "too_long", "odd_field", "stream_options_alone", "zero_n"),
]
_COMMON: Final[dict[str, Sequence[str]]] = {
    "stream": ["no", "yes"],
    "length": ["short", "long"],
    "limit": ["8", "1", "24"],
    "stop": ["none", "several", "token_id"],
    "ids": ["no", "yes"],
    "format": ["none", "json_schema", "regex"],
    "usage": ["none", "include", "continuous"],
    "error": _ERRORS,
}
AXES: Final[dict[str, dict[str, Sequence[str]]]] = {
    COMPLETIONS: {
        "prompt": ["text", "ids", "lists"],
        "n": ["1", "2"],
        "echo": ["no", "yes"],
        "logprobs": ["none", "2"],
        "prompt_logprobs": ["none", "1"],
        **_COMMON,
    },
    CHAT: {
        "content": ["text", "parts"],
        "n": ["1", "2"],
        "logprobs": ["none", "2"],
        "prompt_logprobs": ["none", "1"],
        "tools": ["none", "auto", "required", "named", "off"],
        "echo": ["no", "yes"],
        **_COMMON,
    },
    RESPONSES: {
        "stream": ["no", "yes"],
        "input": ["text", "items"],
        "instructions": ["no", "yes"],
        "length": ["short", "long"],
        "limit": ["8", "1"],
        "store": ["unset", "no", "yes"],
        "logprobs": ["none", "2"],
        "tools": ["none", "auto", "required"],
        "format": ["none", "json_schema"],
        "error": ["none", "unknown_model", "no_model", "no_prompt", "unknown_previous", "text_temperature", "too_long"],
    },
    MESSAGES: {
        "stream": ["no", "yes"],
        "content": ["text", "parts"],
        "system": ["no", "yes"],
        "length": ["short", "long"],
        "limit": ["8", "1"],
        "stop": ["none", "several"],
        "tools": ["none", "auto", "any"],
        "error": ["none", "unknown_model", "no_model", "no_prompt", "no_max_tokens", "text_temperature", "too_long"],
    },
}


def cases() -> list[tuple[str, Case]]:
    """Return every case with its route: good requests of all pairs, then what is wrong in one way each, every other one of a stream.

    A wrong request tells nothing about its other values, so that it may not stand for a pair of these.
    """
    found: list[tuple[str, Case]] = []
    for path, axes in AXES.items():
        good = {name: values[:1] if name == "error" else values for name, values in axes.items()}
        plainest = {name: values[0] for name, values in axes.items()}
        bad = zip(cycle(axes["stream"]), axes["error"][1:])
        found += [(path, case) for case in pairwise(good, _MAY_BE[path])]
        found += [(path, {**plainest, "stream": stream, "error": error}) for stream, error in bad]
    return found


def request(path: str, case: Case, model: str, serial: int) -> Asked:
    """Make a case's request; `serial` makes its prompt one that no request had before."""
    body = _BODIES[path](case, serial) | {"model": model, "temperature": 0}
    if case["stream"] == "yes":
        body["stream"] = True
    if case.get("n", "1") != "1":  # greedy vLLM makes one answer: top_k 1 is as exact
        body |= {"n": int(case["n"]), "temperature": 0.7, "top_k": 1}
    return Asked(path, _spoilt(path, case["error"], body))


def _may_be_generated(case: Case) -> bool:
    """Whether a completion or a chat of these values can be asked for without an error."""
    alone = case["prompt_logprobs"] == "none" and case["echo"] == "no"
    return (
        (case["stream"] == "yes" or case["usage"] == "none")
        and (alone or (case["stream"] == "no" and case["format"] == "none"))
        and (case["format"] == "none" or (case["stop"] == "none" and case["limit"] == "24"))
        and (case.get("tools", "none") in ("none", "off") or _may_call(case))
    )


def _may_call(case: Case) -> bool:
    return case["format"] == case["stop"] == "none" and case["limit"] == "24" and case["echo"] == "no"


_MAY_BE: Final[dict[str, Callable[[Case], bool]]] = {
    COMPLETIONS: _may_be_generated,
    CHAT: _may_be_generated,
    RESPONSES: lambda case: "none" in (case["tools"], case["format"]),
    MESSAGES: lambda case: "none" in (case["tools"], case["stop"]),
}


def _text(case: Case, serial: int) -> str:
    own = f"Who keeps boat {serial} in spring?"
    return own if case["length"] == "short" else f"{SHARED} {own}"


def _completion(case: Case, serial: int) -> dict[str, Any]:
    text = _text(case, serial)
    ids = [100 + serial, *range(40, 60)] if case["length"] == "short" else [*range(30, 330), 100 + serial]
    prompts = {"text": text, "ids": ids, "lists": [ids, [*ids, 77]]}
    body: dict[str, Any] = {"prompt": prompts[case["prompt"]], **_generated(case)}
    if case["logprobs"] != "none":
        body["logprobs"] = int(case["logprobs"])
    return body


def _chat(case: Case, serial: int) -> dict[str, Any]:
    text = _text(case, serial)
    content = text if case["content"] == "text" else [{"type": "text", "text": text}]
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": content}]
    body: dict[str, Any] = {"messages": messages, **_generated(case)}
    if case["logprobs"] != "none":
        body |= {"logprobs": True, "top_logprobs": int(case["logprobs"])}
    function = {"name": "look", "description": "Look at a place", "parameters": _PARAMETERS}
    if case["tools"] != "none":
        named = {"type": "function", "function": {"name": "look"}}
        choices = {"auto": "auto", "required": "required", "named": named, "off": "none"}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": choices[case["tools"]]}
    return body


def _generated(case: Case) -> dict[str, Any]:
    body: dict[str, Any] = {"max_tokens": int(case["limit"])}
    stops: Mapping[str, dict[str, Any]] = {
        "none": {},
        "several": {"stop": ["xyzzy", "a"], "include_stop_str_in_output": True},
        "token_id": {"stop_token_ids": [300, 301, 302]},
    }
    formats: Mapping[str, dict[str, Any]] = {
        "none": {},
        "json_schema": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        },
        "regex": {"structured_outputs": {"regex": "[a-c]{3}"}},
    }
    body |= stops[case["stop"]] | formats[case["format"]]
    if case["ids"] == "yes":
        body |= {"return_token_ids": True}
    if case["usage"] != "none":
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": case["usage"] == "continuous"}
    if case["echo"] == "yes":
        body["echo"] = True
    if case["prompt_logprobs"] != "none":
        body["prompt_logprobs"] = int(case["prompt_logprobs"])
    return body


def _response(case: Case, serial: int) -> dict[str, Any]:
    text = _text(case, serial)
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]
    body: dict[str, Any] = {"input": text if case["input"] == "text" else items}
    body["max_output_tokens"] = 24 if case["format"] != "none" or case["tools"] != "none" else int(case["limit"])
    if case["instructions"] == "yes":
        body["instructions"] = "Answer briefly."
    if case["store"] != "unset":
        body["store"] = case["store"] == "yes"
    if case["logprobs"] != "none":
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": int(case["logprobs"])}
    if case["tools"] != "none":
        body["tools"] = [{"type": "function", "name": "look", "parameters": _PARAMETERS, "strict": True}]
        body["tool_choice"] = case["tools"]
    if case["format"] != "none":
        body["text"] = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
    return body


def _message(case: Case, serial: int) -> dict[str, Any]:
    text = _text(case, serial)
    content = text if case["content"] == "text" else [{"type": "text", "text": text}]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}]}
    body["max_tokens"] = 24 if case["tools"] != "none" else int(case["limit"])
    if case["system"] == "yes":
        body["system"] = "Answer briefly."
    if case["stop"] != "none":
        body["stop_sequences"] = ["xyzzy", "a"]
    if case["tools"] != "none":
        body["tools"] = [{"name": "look", "description": "Look at a place", "input_schema": _PARAMETERS}]
        body["tool_choice"] = {"type": case["tools"]}
    return body


_BODIES: Final[dict[str, Callable[[Case, int], dict[str, Any]]]] = {
    COMPLETIONS: _completion,
    CHAT: _chat,
    RESPONSES: _response,
    MESSAGES: _message,
}
_PROMPT_FIELD: Final = {COMPLETIONS: "prompt", CHAT: "messages", RESPONSES: "input", MESSAGES: "messages"}
_LIMIT_FIELD: Final = {
    COMPLETIONS: "max_tokens",
    CHAT: "max_tokens",
    RESPONSES: "max_output_tokens",
    MESSAGES: "max_tokens",
}


def _spoilt(path: str, error: str, body: dict[str, Any]) -> dict[str, Any]:
    """Make the request wrong in the way that a case wants."""
    prompt, limit = _PROMPT_FIELD[path], _LIMIT_FIELD[path]
    long = "boat " * 6000
    removed = {"no_model": "model", "no_prompt": prompt, "no_max_tokens": limit}
    changed: dict[str, dict[str, Any]] = {
        "unknown_model": {"model": "unheard-of"},
        "negative_max_tokens": {limit: -1},
        "float_max_tokens": {limit: 1.5},
        "text_temperature": {"temperature": "hot"},
        "high_temperature": {"temperature": -1},
        "too_long": {prompt: long if prompt != "messages" else [{"role": "user", "content": long}]},
        "odd_field": {"unheard_of": 1},
        "stream_options_alone": {"stream": False, "stream_options": {"include_usage": True}},
        "zero_n": {"n": 0},
        "unknown_previous": {"previous_response_id": "resp_unheard_of"},
    }
    kept = {name: value for name, value in body.items() if name != removed.get(error)}
    return kept | changed.get(error, {})
