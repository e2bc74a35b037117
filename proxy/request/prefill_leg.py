"""The prefill leg of each API: the same prompt, one token, no stream. Pure; `leg_bodies.py` has that of chat and completions.

What shapes the prompt stays: messages, instructions, tools, what the client says of thinking, template arguments, salt.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from baton.contracts.kv_transfer import FIELD
from baton.proxy.request.endpoints import MESSAGES, RESPONSES
from baton.proxy.request.fields import Fields
from baton.proxy.request.leg_bodies import prefill_body
from baton.proxy.request.parse import ClientRequest

_NOT_OF_RESPONSES: Final = frozenset(
    (
        "background",
        "enable_response_messages",
        "frequency_penalty",
        "include",
        "include_reasoning",
        "logit_bias",
        "max_tool_calls",
        "metadata",
        "min_p",
        "presence_penalty",
        "repetition_penalty",
        "request_id",
        "seed",
        "stop",
        "stop_token_ids",
        "stream_options",
        "structured_outputs",
        "top_k",
        "top_logprobs",
        "top_p",
    )
)
_NOT_OF_MESSAGES: Final = frozenset(("metadata", "stop_sequences", "top_k", "top_p"))
# vLLM 0.32 refuses a thinking budget that is not below `max_tokens`, but for a leg that says it is a prefill leg.
_IS_PREFILL: Final = {"do_remote_decode": True}


def prefill_leg(request: ClientRequest, params: Mapping[str, Any]) -> bytes:
    """Return the prefill node's body for a request."""
    make = _OF.get(request.endpoint)
    return prefill_body(request.fields, dict(params)) if make is None else make(request.fields, params)


def _responses(fields: Fields, params: Mapping[str, Any]) -> bytes:
    body: dict[str, Any] = {name: value for name, value in fields.items() if name not in _NOT_OF_RESPONSES}
    return msgspec.json.encode(
        {**body, "max_output_tokens": 1, "stream": False, "store": False, "temperature": 0, FIELD: params}
    )


def _messages(fields: Fields, params: Mapping[str, Any]) -> bytes:
    body: dict[str, Any] = {name: value for name, value in fields.items() if name not in _NOT_OF_MESSAGES}
    return msgspec.json.encode(
        {**body, "max_tokens": 1, "stream": False, "temperature": 0, FIELD: {**params, **_IS_PREFILL}}
    )


_OF: Final[dict[str, Callable[[Fields, Mapping[str, Any]], bytes]]] = {RESPONSES: _responses, MESSAGES: _messages}
