"""A real node's stream, cut after an event and gone on with by the same node, which starts with its tokens, is the same stream."""

import json
from typing import Any

import msgspec
import pytest

from baton.contracts.http import TOKEN_IDS_HEADER
from baton.proxy.request.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from baton.proxy.request.parse import ClientRequest, parse
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.resume import events
from baton.proxy.resume.stream import Stream
from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.support.joined_stream import joined_stream
from tests.support.thinking_parser import END_OF_THOUGHT, PLUGIN

pytestmark = pytest.mark.e2e

TOKENS = 16
USAGE = {"stream_options": {"include_usage": True}}
WORDS = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
ASKED = {"messages": [{"role": "user", "content": "Where is the harbour?"}]}
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string", "maxLength": 8}, "miles": {"type": "integer", "maximum": 99}},
    "required": ["place", "miles"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
CALL = r'<tool_call>\n\{"name": "look", "arguments": \{"place": "[a-z]{1,9}", "miles": [0-9]\}\}\n</tool_call>'
LONG = {"max_tokens": 80, "temperature": 0.8, "seed": 9}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": "Once", **WORDS, **USAGE}),
    "log probabilities": (COMPLETIONS, {"prompt": "Once 😀", "logprobs": 2, "return_token_ids": True, **WORDS}),
    "cut characters": (COMPLETIONS, {"prompt": "Say 😀😀", **WORDS, "emoji": True}),
    "seeded": (CHAT, {**ASKED, **WORDS, "temperature": 1.0, "seed": 11, **USAGE}),
    "penalties and stops": (
        COMPLETIONS,
        {"prompt": "The sea", **WORDS, "frequency_penalty": 0.5, "stop": ["zzz", "never said"]},
    ),
    "continuous usage": (
        CHAT,
        {**ASKED, **WORDS, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "chat with log probabilities": (CHAT, {**ASKED, **WORDS, "logprobs": True, "top_logprobs": 2}),
    "JSON": (
        CHAT,
        {**ASKED, **LONG, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    ),
    "regular expression": (COMPLETIONS, {"prompt": "a", **LONG, "structured_outputs": {"regex": "(ab|cd){6,9}"}}),
    "tools auto": (CHAT, {**ASKED, **LONG, "tools": [TOOL], "structured_outputs": {"regex": CALL}}),
    "tools required": (CHAT, {**ASKED, **LONG, "tools": [TOOL], "tool_choice": "required"}),
    "tool named": (
        CHAT,
        {**ASKED, **LONG, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    ),
    "three answers": (CHAT, {**ASKED, **WORDS, "temperature": 1.0, "seed": 4, "n": 3, **USAGE}),
    "two prompts": (COMPLETIONS, {"prompt": ["Once", "The sea"], "n": 2, **WORDS, "temperature": 1.0, "seed": 4}),
    "echo": (COMPLETIONS, {"prompt": "Once", "echo": True, **WORDS}),
    "message": (MESSAGES, {**ASKED, "max_tokens": TOKENS, "temperature": 0}),
    "message with a tool": (
        MESSAGES,
        {
            **ASKED,
            "max_tokens": 80,
            "temperature": 0,
            "tools": [{"name": "look", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
        },
    ),
    "response": (RESPONSES, {"input": "Where is it?", "max_output_tokens": TOKENS, "temperature": 0}),
    "response with a tool": (
        RESPONSES,
        {
            "input": "Where is it?",
            "max_output_tokens": 80,
            "temperature": 0,
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": "required",
        },
    ),
}


def ask(stack: Stack, node: Server, stream: Stream) -> list[bytes]:
    start = stream.asked.start
    fields: dict[str, Any] = {**stream.asked.fields, **(stack.leg("decode", start=start) if start else {})}
    body = msgspec.json.decode(msgspec.json.encode(fields))  # some are kept as they were sent
    answer = node.ask(stream.asked.endpoint, body, {TOKEN_IDS_HEADER: "1"})
    return [event + events.END for event in answer.content.split(events.END)[:-1]]


def emoji_tokens(trio: Trio) -> list[int]:
    """The byte tokens of an emoji and of a letter."""
    ids: list[int] = trio.plain.ask("/tokenize", {"model": trio.model, "prompt": "😀a"}).json()["tokens"]
    assert len(ids) == 5
    return ids


def comparable(stream: bytes) -> dict[str, Any]:
    """What a client has at the end, but for how much of its prompt was cached."""
    found = joined_stream(stream)
    for usage in [
        found.get("usage"),
        *(each.get("response", {}).get("usage") for each in found.values() if isinstance(each, dict)),
    ]:
        for details in ("prompt_tokens_details", "input_tokens_details"):
            (usage or {}).pop(details, None)
    return found


AFTER = pytest.mark.parametrize("after", ["the middle", pytest.param("every event", marks=pytest.mark.exhaustive)])


@pytest.mark.parametrize("kind", CASES)
@AFTER
def test_a_real_stream_that_is_cut_goes_on_exactly(stack: Stack, trio: Trio, kind: str, after: str) -> None:
    """Characters cut in the middle, arguments of tool calls, several answers, log probabilities, usage."""
    path, more = CASES[kind]
    body = {"model": stack.model, "stream": True, **more}
    if body.pop("emoji", False):
        body |= {"allowed_token_ids": emoji_tokens(trio), "repetition_penalty": 1.3}
    request = parse(path, "id", [], msgspec.json.encode(body))

    client = cut(stack, trio.decode, request, after)

    if "tool" in kind:
        assert b"tool_use" in client or b"tool_calls" in client or b"function_call" in client, client
    if kind == "JSON":
        choices = joined_stream(client)["choices"]
        assert json.loads(choices["0"]["delta"]["content"]).keys() == {"place", "miles"}


@AFTER
def test_thoughts_go_on_as_thoughts(stack: Stack, after: str) -> None:
    """Wherever the stream was cut, and what comes after them is the answer."""
    node = stack.node("decode", *FLOAT32, *PLUGIN)
    node.wait_ready()
    for seed in range(100):
        more = {"max_tokens": 24, "temperature": 1.0, "seed": seed, "logit_bias": {END_OF_THOUGHT: 12.0}}
        body = {"model": stack.model, "stream": True, **ASKED, **more}
        request = parse(CHAT, "id", [], msgspec.json.encode(body))
        said = b"".join(ask(stack, node, Stream(request, resumes=True)))
        if said.count(b'"reasoning":') > 4 and said.count(b'"content":"') > 6:
            break
    else:
        pytest.fail("no answer with thoughts and text")

    cut(stack, node, request, after)


def cut(stack: Stack, node: Server, request: ClientRequest, after: str) -> bytes:
    """Cut a request's stream, and compare; return the whole stream."""
    whole = Stream(request, resumes=True)
    first = ask(stack, node, whole)
    whole.begin_decode(RequestRecord(""))
    client = b"".join(map(whole.take, first))
    assert whole.ended
    assert len(first) > 6, first
    middle = len(first) // 2
    for cut_at in (middle, middle + 1) if after == "the middle" else range(1, len(first)):  # one is amid a character
        stream = Stream(request, resumes=True)
        stream.begin_decode(RequestRecord(""))
        got = b"".join(map(stream.take, first[:cut_at]))
        stream.go_on()
        stream.begin_decode(RequestRecord(""))
        got += b"".join(map(stream.take, ask(stack, node, stream)))

        assert comparable(got) == comparable(client), cut_at
    return client
