"""The two bodies that one request becomes. Pure.

The decode node gets what the client sent. The prefill node gets the same prompt, whatever shapes it (messages, tools,
template arguments, documents, images, truncation, salt, adapter), and is asked for one token that nobody reads.
Both carry signed `kv_transfer_params` and nothing that the client wrote there.
"""

from typing import Any, Final

import msgspec

from baton.contracts.kv_transfer import FIELD
from baton.proxy.request.fields import Fields

# What only shapes the output, or costs work on a token that is thrown away, or contradicts `max_tokens: 1`. The token is
# chosen greedily: nothing is drawn for it (vLLM 0.32 on a CPU dies of a seeded request whose prompt comes in chunks).
# `response_format` and `tool_choice` stay: vLLM hands both to the chat template.
_OUTPUT_ONLY: Final = frozenset(
    (
        "allowed_token_ids",
        "bad_words",
        "best_of",
        "echo",
        "frequency_penalty",
        "logit_bias",
        "logprob_token_ids",
        "logprobs",
        "min_p",
        "min_tokens",
        "n",
        "presence_penalty",
        "repetition_detection",
        "repetition_penalty",
        "request_id",
        "return_prompt_text",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "seed",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_interval",
        "stream_options",
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


def prefill_body(fields: Fields, params: dict[str, Any]) -> bytes:
    """Return the prefill node's body: the same prompt, one token, chosen greedily, no stream."""
    body: dict[str, Any] = {name: value for name, value in fields.items() if name not in _OUTPUT_ONLY}
    if "max_completion_tokens" in body:
        body["max_completion_tokens"] = 1
    body.update({"max_tokens": 1, "stream": False, "n": 1, "temperature": 0, FIELD: params})
    return _encode(body)
