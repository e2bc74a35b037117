"""The two bodies that one request becomes. Pure.

The decode node gets what the client sent. The prefill node gets the same prompt, whatever shapes it (messages,
instructions, tools, thinking, template arguments, documents, images, truncation, salt, adapter), and is asked for one
token: the answer's first one, chosen as the client asks for it, if it is to travel to the decode node with the KV; else
one that is thrown away. Both carry signed `kv_transfer_params` and nothing that the client wrote there.
"""

from contextlib import suppress
from typing import Any, Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.kv_transfer import FIELD
from baton.proxy.request.endpoints import MESSAGES, RESPONSES
from baton.proxy.request.fields import Fields, is_set
from baton.proxy.request.parse import ClientRequest

# What only shapes the answer around its tokens, or contradicts `max_tokens: 1`.
_ANSWER_ONLY: Final = frozenset(
    (
        "best_of",
        "echo",
        "n",
        "repetition_detection",
        "request_id",
        "return_prompt_text",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "stop",
        "stream",
        "stream_interval",
        "stream_options",
    )
)
_ANSWER_ONLY_OF: Final = {
    RESPONSES: frozenset(
        (
            "background",
            "enable_response_messages",
            "include_reasoning",
            "max_tool_calls",
            "metadata",
            "request_id",
            "stop",
            "stream_options",
        )
    ),
    MESSAGES: frozenset(("metadata", "stop_sequences")),
}
# What decides which token is sampled, or what is said of it, in whichever API. `response_format` and `tool_choice` do
# and are in neither list: vLLM hands both to the chat template as well.
_SAMPLING: Final = frozenset(
    (
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
        "include",
        "logit_bias",
        "logprob_token_ids",
        "logprobs",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "stop_token_ids",
        "structured_outputs",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
    )
)
_encode: Final = msgspec.json.Encoder().encode


def decode_body(fields: Fields, params: dict[str, Any] | None) -> bytes:
    """Return the decode node's body; without `params` it computes the prompt itself."""
    return _encode(fields if params is None else {**fields, FIELD: params})


def relayed_body(fields: Fields, params: dict[str, Any]) -> bytes:
    """Return the body of a prefill node whose stream goes to the client up to the first token: the client's own but for `min_tokens`.

    The node ends the request after one token whatever `max_tokens` says. Until then its API server sees what one
    server's would.
    """
    return _encode({**fields, FIELD: params} | _min_tokens(fields))


def prefill_body(request: ClientRequest, params: dict[str, Any], *, first_token: bool, tokens: int = 1) -> bytes:
    """Return the prefill node's body: the same prompt, one token or so many, no stream.

    Unless it is the answer's `first_token`, it is chosen greedily.
    """
    endpoint, fields = request.endpoint, request.fields
    left_out = _ANSWER_ONLY_OF.get(endpoint, _ANSWER_ONLY)
    if not first_token:
        left_out |= _SAMPLING
    body: dict[str, Any] = {name: value for name, value in fields.items() if name not in left_out}
    body |= {"stream": False, FIELD: params}
    if not first_token:
        body["temperature"] = 0
    if endpoint == RESPONSES:
        return _encode(body | {"max_output_tokens": tokens, "store": False})
    body["max_tokens"] = tokens
    if endpoint == MESSAGES:
        # vLLM 0.32 refuses a thinking budget that is not below `max_tokens`, but for a leg that says it is a prefill
        # leg.
        return _encode(body | {FIELD: {**params, "do_remote_decode": True}})
    if "max_completion_tokens" in body:
        body["max_completion_tokens"] = tokens
    return _encode(body | {"n": 1} | (_min_tokens(fields) if first_token else {}))


def _min_tokens(fields: Fields) -> dict[str, int]:
    """Return a `min_tokens` that one token can satisfy, which to the first token is the same; more than `max_tokens` is refused."""
    with suppress(*DECODE_ERRORS):  # out of range: the decode node says so
        if is_set(fields, "min_tokens") and msgspec.json.decode(fields["min_tokens"], type=float) > 0:
            return {"min_tokens": 1}
    return {}
