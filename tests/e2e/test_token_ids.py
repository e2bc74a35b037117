"""A decode node names the tokens of its streams before it says them, and starts each of several answers with its own."""

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from baton.contracts.http import TOKEN_IDS_HEADER, TOKENS_COMMENT
from baton.deploy.embedded_model import WEIGHTS
from tests.e2e.conftest import Trio
from tests.e2e.stack import Server, Stack

pytestmark = pytest.mark.e2e

ASKS = {TOKEN_IDS_HEADER: "1"}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL: dict[str, Any] = {"model": str(WEIGHTS)}
GREEDY: dict[str, Any] = MODEL | {"temperature": 0}
MESSAGES = [{"role": "user", "content": "Tell me about the sea, and about the harbour."}]
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 5, "return_token_ids": True, "max_tokens": 8}

Ids = dict[int, list[int]]  # by choice


class Event(NamedTuple):
    """What one event of a stream says."""

    data: dict[str, Any]
    named: Ids  # so far, itself included


@pytest.fixture
def node(trio: Trio) -> Server:
    """A decode node, asked without a proxy."""
    return trio.decode


def stream(node: Server, path: str, body: dict[str, Any]) -> list[Event]:
    """Return a stream's events; the lines with tokens stand in front of an event's other lines."""
    response = node.ask(path, body | {"stream": True}, ASKS)
    named: defaultdict[int, list[int]] = defaultdict(list)
    events = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        lines = block.split("\n")
        comment = TOKENS_COMMENT.decode()
        while lines[0].startswith(comment):
            choice, ids = lines.pop(0).removeprefix(comment).split(" ")
            named[int(choice)] += map(int, ids.split(","))
        assert not any(line.startswith(":") for line in lines)
        data = lines[-1].removeprefix("data: ")
        if data != "[DONE]":
            events.append(Event(json.loads(data), {choice: list(ids) for choice, ids in named.items()}))
    return events


def whole(node: Server, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the choices of an answer that is not streamed."""
    response = node.ask(path, body | {"return_token_ids": True}, headers)
    assert TOKENS_COMMENT.decode() not in response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(CHAT, {"messages": MESSAGES, "temperature": 0, "max_tokens": 8}, id="chat"),
        pytest.param(CHAT, {"messages": MESSAGES, "n": 2} | SEEDED, id="chat, two answers"),
        pytest.param(COMPLETIONS, {"prompt": "The harbour", "n": 3} | SEEDED, id="three answers"),
        pytest.param(COMPLETIONS, {"prompt": ["The harbour", "The sea"], "n": 2} | SEEDED, id="two prompts"),
        pytest.param(COMPLETIONS, {"prompt": "The harbour", "stop": ["a long stop"]} | SEEDED, id="text held back"),
        pytest.param(COMPLETIONS, {"prompt": "The harbour", "vllm_xargs": {"other": 1}} | SEEDED, id="other arguments"),
    ],
)
def test_tokens_are_named_before_they_are_said(node: Server, path: str, body: dict[str, Any]) -> None:
    """Each event's own ids have been named by then, and at the end those of each choice."""
    said: defaultdict[int, list[int]] = defaultdict(list)

    events = stream(node, path, MODEL | body | {"return_token_ids": True})
    for event in events:
        for choice in event.data["choices"]:
            said[choice["index"]] += choice.get("token_ids") or ()
            assert event.named.get(choice["index"], [])[: len(said[choice["index"]])] == said[choice["index"]]

    wanted = whole(node, path, MODEL | body)
    assert events[-1].named == dict(said) == {choice["index"]: choice["token_ids"] for choice in wanted}


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 8}, "content_block_delta"),
        ("/v1/responses", {"input": MESSAGES, "max_output_tokens": 8}, "response.output_text.delta"),
    ],
)
def test_apis_that_do_not_say_ids_name_them_too(node: Server, path: str, body: dict[str, Any], kind: str) -> None:
    """They answer what a chat does. No event has more text than the tokens that are named."""
    events = stream(node, path, GREEDY | body)
    (wanted,) = whole(node, CHAT, GREEDY | {"messages": MESSAGES, "max_tokens": 8})

    text = ""
    for event in events:
        if event.data["type"] == kind:
            delta = event.data["delta"]
            text += delta if isinstance(delta, str) else delta["text"]
            prompt = {"tokens": event.named[0], **MODEL}
            assert node.ask("/detokenize", prompt).json()["prompt"].startswith(text)
    assert text == wanted["message"]["content"]
    assert events[-1].named == {0: wanted["token_ids"]}


def test_without_the_header_nothing_is_named(node: Server) -> None:
    """The stream is vLLM's own."""
    response = node.ask(COMPLETIONS, GREEDY | {"prompt": "The harbour", "max_tokens": 4, "stream": True})

    assert not any(line.startswith(":") for line in response.text.splitlines())


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"prompt": ["The harbour", "The sea", "A ship"], "temperature": 0}, id="greedy, three prompts"),
        pytest.param({"prompt": ["The harbour", "The sea"], "n": 2} | SEEDED, id="two prompts"),
        pytest.param({"prompt": "The harbour", "n": 3, "logprobs": 2} | SEEDED, id="logprobs"),
    ],
)
def test_each_answer_goes_on_from_its_own_tokens(stack: Stack, node: Server, asked: dict[str, Any]) -> None:
    """Five, none and two of them, or all."""
    body = MODEL | asked | {"max_tokens": 10}
    several = isinstance(asked["prompt"], list)
    wanted = whole(node, COMPLETIONS, body)
    before = node.transfers()["scheduler"]
    ids = [choice["token_ids"] for choice in wanted]

    def leg(known: list[list[int]]) -> dict[str, Any]:
        return stack.leg("decode", start=tuple(map(tuple, known)), several=several)

    for known in ([ids[0][:5], [], ids[2][:2]], [ids[0], ids[1][:1]]):
        got = whole(node, COMPLETIONS, body | leg(known), ASKS)
        names = ("index", "token_ids", "text", "finish_reason")
        assert [[choice[name] for name in names] for choice in got] == [
            [choice[name] for name in names] for choice in wanted
        ]
        events = stream(node, COMPLETIONS, body | leg(known))
        assert events[-1].named == dict(enumerate(ids))

    after = node.transfers()["scheduler"]
    assert after["totals"]["started"] - before["totals"]["started"] == 8
    assert after["refused"] == before["refused"]
    assert node.integrity()["ok"]


def test_streams_at_once_are_not_mixed_up(node: Server) -> None:
    """Each has a log of its own, whatever task the engine's output is handled in."""
    bodies = [MODEL | {"prompt": f"The harbour {i}"} | SEEDED | {"seed": i} for i in range(12)]

    with ThreadPoolExecutor(12) as pool:
        streams = list(pool.map(lambda body: stream(node, COMPLETIONS, body), bodies))

    for events in streams:
        said = [one for event in events for choice in event.data["choices"] for one in choice["token_ids"] or ()]
        assert events[-1].named == {0: said}
