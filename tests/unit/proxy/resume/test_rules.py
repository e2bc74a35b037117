"""Which streams go on on another node, and what the sentences are for those that do not."""

from typing import Any

import msgspec
import pytest

from baton.proxy.request.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from baton.proxy.request.parse import parse
from baton.proxy.resume.rules import NotResumableReason, why_not_kept, why_not_resumed

PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {"prompt": "x"},
    MESSAGES: {"messages": [{"role": "user", "content": "x"}]},
    RESPONSES: {"input": "x"},
}


def why_not(endpoint: str, *, resumes: bool = True, **more: Any) -> NotResumableReason | None:
    body = {"model": "m", "stream": True, **PROMPTS[endpoint], **more}
    return why_not_resumed(parse(endpoint, "id", [], msgspec.json.encode(body)), resumes=resumes)


@pytest.mark.parametrize("endpoint", PROMPTS)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 1.0},
        {"seed": 3},
        {"n": 3, "presence_penalty": 1.0, "stop": ["x"], "best_of": 1},
        {"tools": [{"type": "function"}], "tool_choice": "auto"},
        {"structured_outputs": {"regex": "a+"}, "response_format": {"type": "json_object"}},
        {"an_unknown_field": 1},
    ],
)
def test_every_kind_of_stream_goes_on(endpoint: str, more: dict[str, Any]) -> None:
    assert why_not(endpoint, **more) is None


@pytest.mark.parametrize(
    ("endpoint", "more", "reason"),
    [
        # What tokens alone do not say.
        (COMPLETIONS, {"stream": False}, NotResumableReason.OFF),
        (COMPLETIONS, {"resumes": False}, NotResumableReason.OFF),
        (COMPLETIONS, {"use_beam_search": True}, NotResumableReason.BEAMS),
        (COMPLETIONS, {"best_of": 2}, NotResumableReason.BEAMS),
        (COMPLETIONS, {"prompt_logprobs": 1}, NotResumableReason.PROMPT_LOGPROBS),
        (COMPLETIONS, {"echo": True, "logprobs": 1}, NotResumableReason.PROMPT_LOGPROBS),
        (COMPLETIONS, {"prompt_embeds": "x"}, NotResumableReason.EMBEDDINGS),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}, NotResumableReason.LOGPROBS),
        # Tools that a node calls would be called twice.
        (RESPONSES, {"tools": [{"type": "function"}, {"type": "mcp"}]}, NotResumableReason.ON_NODE),
        (RESPONSES, {"background": True}, NotResumableReason.ON_NODE),
        (RESPONSES, {"tools": 3, "include": "x"}, None),
        (RESPONSES, {"tools": None, "include": []}, None),
    ],
)
def test_what_ends_with_an_error_event(endpoint: str, more: dict[str, Any], reason: NotResumableReason | None) -> None:
    assert why_not(endpoint, **more) is reason


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, None),
        ({"stream": True}, NotResumableReason.OFF),
        ({"resumes": False}, NotResumableReason.OFF),
        ({"logprobs": True}, NotResumableReason.LOGPROBS),
        ({"top_logprobs": 2}, NotResumableReason.LOGPROBS),
        ({"use_beam_search": True}, NotResumableReason.BEAMS),
    ],
)
def test_which_whole_answers_are_not_kept(more: dict[str, Any], reason: NotResumableReason | None) -> None:
    resumes = more.pop("resumes", True)
    body = msgspec.json.encode({"model": "m", **PROMPTS[CHAT], **more})

    assert why_not_kept(parse(CHAT, "id", [], body), resumes=resumes) is reason
