"""Whether, and how, a stream that breaks may be resumed exactly. Pure; see docs/failover.md for the reasons.

Two ways. *From token ids*: another node gets the prompt's ids with the answer's so far as its prompt, and goes on with the
next token. That is exact where a token depends on the ids before it and on nothing else, so only fields that are known
to be like that are let through. *By replay*: another node answers the same request from the start, and what the
client has is compared and left out. That is exact for whatever is deterministic, and costs the decoding once more.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import msgspec

from baton.proxy.request.eligibility import has_several_prompts
from baton.proxy.request.endpoints import CHAT
from baton.proxy.request.fields import Fields, is_set
from baton.proxy.request.parse import ClientRequest


class ResumeStrategy(StrEnum):
    """How a stream is resumed; the values are labels of `baton_streams_resumed_total`."""

    TOKEN_IDS = "token_ids"  # noqa: S105  # no password
    REPLAY = "replay"
    START = "start"  # with the first token, the only one that the client has


class NotResumableReason(StrEnum):
    """Why a stream is not resumed; the values are labels of `baton_streams_not_resumed_total`."""

    OFF = "off"
    RANDOM = "random"  # neither greedy nor seeded
    SEVERAL = "several"  # more than one answer in the stream
    ECHO = "echo"
    TOO_LONG = "too_long"
    NO_TOKEN_IDS = "no_token_ids"  # noqa: S105  # no password
    NOT_PLAIN = "not_plain"
    MEDIA = "media"
    DIFFERS = "differs"
    RETRY_DENIED = "retry_denied"
    NO_NODE = "no_node"
    ENDPOINT = "endpoint"


SENTENCES: Final[dict[NotResumableReason, str]] = {
    NotResumableReason.OFF: "resuming is switched off",
    NotResumableReason.RANDOM: "neither a temperature of 0 nor a seed was asked for, so that another node would answer differently",
    NotResumableReason.SEVERAL: "it holds several answers",
    NotResumableReason.ECHO: "it repeats the prompt",
    NotResumableReason.TOO_LONG: "it is too long to be remembered",
    NotResumableReason.NO_TOKEN_IDS: "the node gave no token ids",
    NotResumableReason.NOT_PLAIN: "it holds more than text: reasoning, tool calls or log probabilities",
    NotResumableReason.MEDIA: "its prompt holds more than text",
    NotResumableReason.DIFFERS: "another node answered differently",
    NotResumableReason.RETRY_DENIED: "no further attempt is allowed",
    NotResumableReason.NO_NODE: "no other node could go on with it",
    NotResumableReason.ENDPOINT: "only chats and completions are",
}

_COMPLETION_LIMIT: Final = 16  # vLLM's, as OpenAI's, where a completion names none
_GREEDY_BELOW: Final = 1e-5  # vLLM's `_SAMPLING_EPS`

# Fields with which the next token depends on nothing but the ids before it, whatever their value.
_STATELESS: Final = frozenset(
    (
        "add_generation_prompt",
        "add_special_tokens",
        "allowed_token_ids",
        "cache_salt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "min_p",
        "min_tokens",  # counted down
        "model",
        "parallel_tool_calls",
        "priority",
        "prompt",
        "repetition_penalty",  # counts prompt and answer alike
        "request_id",
        "return_token_ids",
        "seed",
        "session_id",
        "skip_special_tokens",
        "stop_token_ids",
        "stream",
        "stream_interval",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "truncate_prompt_tokens",
        "truncation_side",
        "user",
    )
)
# Fields that may be there with a value that changes nothing.
_HARMLESS: Final[dict[str, Callable[[Any], bool]]] = {
    "bad_words": lambda value: value == [],
    "best_of": lambda value: value == 1,
    "echo": lambda value: value is False,
    "frequency_penalty": lambda value: value == 0,
    "include_reasoning": lambda value: value is True,
    "n": lambda value: value == 1,
    "presence_penalty": lambda value: value == 0,
    "response_format": lambda value: value == {"type": "text"},
    "spaces_between_special_tokens": lambda value: value is True,
    "stop": lambda value: value in ([], ""),
    "suffix": lambda value: value == "",
    "tool_choice": lambda value: value == "none",
    "tools": lambda value: value == [],
    "use_beam_search": lambda value: value is False,
}
# Log probabilities of a completion have a shape that can be continued; those of a chat have another one.
_COMPLETION_ONLY: Final = frozenset(("logprobs", "return_tokens_as_token_ids"))


def find_resume_strategy(request: ClientRequest) -> ResumeStrategy | NotResumableReason:
    """Say how a stream would be resumed.

    Args:
        request: one that asks for a stream, its values not yet checked by any node.
    """
    fields = request.fields
    for name, reason in (
        ("n", NotResumableReason.SEVERAL),
        ("best_of", NotResumableReason.SEVERAL),
        ("use_beam_search", NotResumableReason.SEVERAL),
    ):
        if not _is_harmless(fields, name):
            return reason
    if has_several_prompts(fields):
        return NotResumableReason.SEVERAL
    if not _is_harmless(fields, "echo"):
        return NotResumableReason.ECHO
    greedy = is_set(fields, "temperature") and _number(fields, "temperature") < _GREEDY_BELOW
    if not greedy and not is_set(fields, "seed"):
        return NotResumableReason.RANDOM
    if greedy and _is_stateless(request) and limit(request) is not None:
        return ResumeStrategy.TOKEN_IDS
    if is_set(fields, "logprobs") or is_set(fields, "return_token_ids") or is_set(fields, "prompt_logprobs"):
        return NotResumableReason.NOT_PLAIN
    return ResumeStrategy.REPLAY


def limit(request: ClientRequest) -> int | None:
    """Return how many tokens the answer may have; None if the client left that to the node."""
    fields = request.fields
    names = ("max_completion_tokens", "max_tokens") if request.endpoint == CHAT else ("max_tokens",)
    for name in names:
        if is_set(fields, name):
            value = msgspec.json.decode(fields[name])
            return value if isinstance(value, int) else None
    return _COMPLETION_LIMIT if request.endpoint != CHAT and "max_tokens" not in fields else None


def _is_stateless(request: ClientRequest) -> bool:
    names = [name for name in request.fields if name not in _STATELESS]
    if request.endpoint != CHAT:
        names = [name for name in names if name not in _COMPLETION_ONLY]
    elif "logprobs" in names and bytes(request.fields["logprobs"]) in (b"false", b"null"):
        names.remove("logprobs")
    return all(
        _is_harmless(request.fields, name) if name in _HARMLESS else not is_set(request.fields, name) for name in names
    )


def _is_harmless(fields: Fields, name: str) -> bool:
    return not is_set(fields, name) or _HARMLESS[name](msgspec.json.decode(fields[name]))


def _number(fields: Fields, name: str) -> float:
    return msgspec.json.decode(fields[name], type=float)
