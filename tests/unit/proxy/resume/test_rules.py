"""Which streams go on on another node, and what the sentences are for those that do not."""

from typing import Any

import msgspec
import pytest

from baton.proxy.request.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from baton.proxy.request.parse import parse
from baton.proxy.resume.rules import NotResumableReason, why_not_resumed

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
    """However it is sampled, whatever it holds."""
    assert why_not(endpoint, **more) is None


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"stream": False}, NotResumableReason.OFF),
        ({"resumes": False}, NotResumableReason.OFF),
        ({"use_beam_search": True}, NotResumableReason.BEAMS),
        ({"best_of": 2}, NotResumableReason.BEAMS),
        ({"prompt_logprobs": 1}, NotResumableReason.PROMPT_LOGPROBS),
        ({"echo": True, "logprobs": 1}, NotResumableReason.PROMPT_LOGPROBS),
        ({"prompt_embeds": "x"}, NotResumableReason.EMBEDDINGS),
    ],
)
def test_what_ends_with_an_error_event(more: dict[str, Any], reason: NotResumableReason) -> None:
    """What tokens alone do not say."""
    assert why_not(COMPLETIONS, **more) is reason


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"include": ["message.output_text.logprobs"]}, NotResumableReason.LOGPROBS),
        ({"tools": [{"type": "function"}, {"type": "mcp"}]}, NotResumableReason.ON_NODE),
        ({"background": True}, NotResumableReason.ON_NODE),
        ({"tools": 3, "include": "x"}, None),
        ({"tools": None, "include": []}, None),
    ],
)
def test_what_of_responses_does(more: dict[str, Any], reason: NotResumableReason | None) -> None:
    """Tools that a node calls would be called twice."""
    assert why_not(RESPONSES, **more) is reason
