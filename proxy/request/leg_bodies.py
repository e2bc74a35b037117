"""The two bodies that one request becomes. Pure.

The decode node gets what the client sent. The prefill node gets the same prompt, whatever shapes it (messages, tools,
template arguments, documents, images, truncation, salt, adapter), and is asked for one token: the answer's first one, chosen as
the client asks for it, if it is to travel to the decode node with the KV; else one that nobody reads.
Both carry signed `kv_transfer_params` and nothing that the client wrote there.
"""

from typing import Any, Final

import msgspec

from baton.contracts.kv_transfer import FIELD
from baton.proxy.request.fields import Fields, is_set

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
# What decides which token is sampled, or what is said of it. `response_format` and `tool_choice` do and are in neither list: vLLM hands
# both to the chat template as well.
_SAMPLING: Final = frozenset(
    (
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
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

    The node ends the request after one token whatever `max_tokens` says. Until then its API server sees what one server's would.
    """
    return _encode({**fields, FIELD: params} | _min_tokens(fields))


def prefill_body(fields: Fields, params: dict[str, Any], *, first_token: bool = False) -> bytes:
    """Return the prefill node's body: the same prompt, one token, no stream.

    Args:
        fields: of the client's request.
        params: signed.
        first_token: whether the token is the answer's first one; else it is chosen greedily.
    """
    left_out = _ANSWER_ONLY if first_token else _ANSWER_ONLY | _SAMPLING
    body: dict[str, Any] = {name: value for name, value in fields.items() if name not in left_out}
    if "max_completion_tokens" in body:
        body["max_completion_tokens"] = 1
    body.update({"max_tokens": 1, "stream": False, "n": 1, FIELD: params})
    if not first_token:
        body["temperature"] = 0
    else:
        body |= _min_tokens(fields)
    return _encode(body)


def _min_tokens(fields: Fields) -> dict[str, int]:
    """Return a `min_tokens` that one token can satisfy, which to the first token is the same; more than `max_tokens` is refused."""
    if is_set(fields, "min_tokens") and msgspec.json.decode(fields["min_tokens"], type=float) > 0:
        return {"min_tokens": 1}
    return {}
