"""The prefill leg of each API: the same prompt, one token, no stream. Pure; `leg_bodies.py` has that of chat and completions.

What shapes the prompt stays: messages, instructions, tools, what the client says of thinking, template arguments, salt.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from baton.contracts.kv_transfer import FIELD
from baton.proxy.request.endpoints import MESSAGES, RESPONSES
from baton.proxy.request.fields import Fields
from baton.proxy.request.leg_bodies import prefill_body
from baton.proxy.request.parse import ClientRequest

_RESPONSES_ANSWER_ONLY: Final = frozenset(
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
)
_RESPONSES_SAMPLING: Final = frozenset(
    (
        "frequency_penalty",
        "include",
        "logit_bias",
        "min_p",
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
_MESSAGES_ANSWER_ONLY: Final = frozenset(("metadata", "stop_sequences"))
_MESSAGES_SAMPLING: Final = frozenset(("temperature", "top_k", "top_p"))
# vLLM 0.32 refuses a thinking budget that is not below `max_tokens`, but for a leg that says it is a prefill leg.
_IS_PREFILL: Final = {"do_remote_decode": True}


def prefill_leg(request: ClientRequest, params: Mapping[str, Any], *, first_token: bool = False) -> bytes:
    """Return the prefill node's body for a request; `first_token`: see `prefill_body`."""
    fields = request.fields
    if request.endpoint == RESPONSES:
        body = _kept(fields, _RESPONSES_ANSWER_ONLY, _RESPONSES_SAMPLING, first_token=first_token)
        body |= {"max_output_tokens": 1, "stream": False, "store": False, FIELD: params}
    elif request.endpoint == MESSAGES:
        body = _kept(fields, _MESSAGES_ANSWER_ONLY, _MESSAGES_SAMPLING, first_token=first_token)
        body |= {"max_tokens": 1, "stream": False, FIELD: {**params, **_IS_PREFILL}}
    else:
        return prefill_body(fields, dict(params), first_token=first_token)
    return msgspec.json.encode(body)


def _kept(fields: Fields, answer: frozenset[str], sampling: frozenset[str], *, first_token: bool) -> dict[str, Any]:
    left_out = answer if first_token else answer | sampling
    kept: dict[str, Any] = {name: value for name, value in fields.items() if name not in left_out}
    return kept if first_token else {**kept, "temperature": 0}
