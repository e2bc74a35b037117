from typing import Any

import msgspec
import pytest

from baton.proxy.request.endpoints import CHAT, COMPLETIONS
from baton.proxy.request.parse import ClientRequest, parse
from baton.proxy.resume.rules import SENTENCES, NotResumableReason, ResumeStrategy, find_resume_strategy, limit

GREEDY = {"temperature": 0, "max_tokens": 9, "stream": True}
SEEDED = {"temperature": 1.0, "seed": 3, "stream": True}


def completion(**more: Any) -> ClientRequest:
    """Make a request for a completion."""
    return parse(COMPLETIONS, "id", [], msgspec.json.encode({"model": "m", "prompt": "x", **more}))


def chat(**more: Any) -> ClientRequest:
    """Make a request for a chat."""
    messages = [{"role": "user", "content": "x"}]
    return parse(CHAT, "id", [], msgspec.json.encode({"model": "m", "messages": messages, **more}))


@pytest.mark.parametrize("make", [completion, chat])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 1e-6},
        {"min_tokens": 3, "ignore_eos": True, "stop_token_ids": [1]},
        {"repetition_penalty": 1.2, "logit_bias": {"5": 1.0}, "allowed_token_ids": [1, 2]},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "stop": [], "n": 1, "bad_words": [], "echo": False},
        {"stop": None, "tools": None, "logprobs": None, "response_format": {"type": "text"}},
        {"return_token_ids": True, "cache_salt": "s", "top_p": 0.5, "top_k": 4, "seed": 1, "user": "u"},
        {"stream_options": {"include_usage": True}},
    ],
)
def test_what_depends_on_the_ids_alone_goes_on_from_them(make: Any, more: dict[str, Any]) -> None:
    """Greedy, and nothing that counts or matches what was said so far."""
    assert find_resume_strategy(make(**{**GREEDY, **more})) is ResumeStrategy.TOKEN_IDS


@pytest.mark.parametrize(
    "more",
    [
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"stop": "x"},
        {"stop": ["x"]},
        {"bad_words": ["x"]},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a+"}},
        {"spaces_between_special_tokens": False},
        {"repetition_detection": {}},
        {"thinking_token_budget": 5},
        {"vllm_xargs": {"a": 1}},
        {"watermarking": True},
        {"a_field_of_a_later_version": 1},
        SEEDED,
    ],
)
def test_other_deterministic_answers_are_replayed(more: dict[str, Any]) -> None:
    """A field that nobody has looked at is among them."""
    assert find_resume_strategy(completion(**{**GREEDY, **more})) is ResumeStrategy.REPLAY


@pytest.mark.parametrize("more", [{"tools": [{}]}, {"reasoning_effort": "low"}, {"include_reasoning": False}])
def test_what_a_parser_shapes_is_replayed(more: dict[str, Any]) -> None:
    """Parsers of a chat carry state over the whole answer."""
    assert find_resume_strategy(chat(**{**GREEDY, **more})) is ResumeStrategy.REPLAY


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (completion(stream=True), NotResumableReason.RANDOM),
        (completion(stream=True, temperature=0.5), NotResumableReason.RANDOM),
        (completion(stream=True, temperature=None, top_k=1), NotResumableReason.RANDOM),
        (completion(**GREEDY, n=2), NotResumableReason.SEVERAL),
        (completion(**GREEDY, best_of=2), NotResumableReason.SEVERAL),
        (completion(**{**GREEDY, "prompt": ["a", "b"]}), NotResumableReason.SEVERAL),
        (completion(**{**GREEDY, "prompt": [[1], [2]]}), NotResumableReason.SEVERAL),
        (completion(**GREEDY, use_beam_search=True), NotResumableReason.SEVERAL),
        (completion(**GREEDY, echo=True), NotResumableReason.ECHO),
        (chat(**GREEDY, logprobs=True), NotResumableReason.NOT_PLAIN),
        (completion(**SEEDED, logprobs=1), NotResumableReason.NOT_PLAIN),
        (completion(**SEEDED, return_token_ids=True), NotResumableReason.NOT_PLAIN),
        (completion(**GREEDY, prompt_logprobs=1), NotResumableReason.NOT_PLAIN),
    ],
)
def test_what_is_never_resumed_has_a_reason(request_: ClientRequest, reason: NotResumableReason) -> None:
    """The client reads the sentence, the operator the label."""
    assert find_resume_strategy(request_) is reason
    assert SENTENCES[reason]


def test_every_reason_has_a_sentence() -> None:
    """None is shown as a label."""
    assert set(SENTENCES) == set(NotResumableReason)


def test_log_probabilities_of_a_completion_can_be_gone_on_with() -> None:
    """Their shape is the one that the next leg answers in."""
    assert (
        find_resume_strategy(completion(**GREEDY, logprobs=2, return_tokens_as_token_ids=True))
        is ResumeStrategy.TOKEN_IDS
    )
    assert find_resume_strategy(chat(**GREEDY, logprobs=False)) is ResumeStrategy.TOKEN_IDS


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        (completion(), 16),
        (completion(max_tokens=5), 5),
        (completion(max_tokens=None), None),
        (completion(max_tokens=2.5), None),
        (chat(), None),
        (chat(max_tokens=5), 5),
        (chat(max_completion_tokens=6, max_tokens=5), 6),
    ],
)
def test_the_limit_is_the_clients_or_vllms_for_a_completion(request_: ClientRequest, tokens: int | None) -> None:
    """What a node would choose by itself, it would choose anew for what is left."""
    assert limit(request_) == tokens


def test_a_chat_without_a_limit_is_replayed() -> None:
    """Its limit is the node's, which counts from where the second leg begins."""
    assert find_resume_strategy(chat(temperature=0, stream=True)) is ResumeStrategy.REPLAY
