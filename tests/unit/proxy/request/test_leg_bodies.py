from typing import Any

import msgspec
import pytest

from baton.proxy.request.fields import split
from baton.proxy.request.leg_bodies import decode_body, prefill_body

PARAMS = {"baton": {"id": "x"}}
PROMPT_FIELDS: dict[str, Any] = {
    "model": "lora-1",
    "messages": [{"role": "user", "content": "ü"}],
    "tools": [{"type": "function"}],
    "tool_choice": "auto",
    "chat_template": "{{ x }}",
    "chat_template_kwargs": {"thinking": True},
    "add_generation_prompt": False,
    "continue_final_message": True,
    "documents": [{"text": "d"}],
    "mm_processor_kwargs": {"a": 1},
    "media_io_kwargs": {"video": {"fps": 1}},
    "truncate_prompt_tokens": 5,
    "truncation_side": "left",
    "cache_salt": "s",
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "priority": 3,
    "an_unknown_field": [1, 2],
}
OUTPUT_FIELDS: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 100,
    "max_completion_tokens": 100,
    "min_tokens": 5,
    "n": 1,
    "logprobs": True,
    "top_logprobs": 5,
    "structured_outputs": {"json": {}},
    "return_token_ids": True,
}


def raw(body: dict[str, Any]) -> dict[str, msgspec.Raw]:
    """Split a body as the proxy does."""
    return split(msgspec.json.encode(body))


def test_the_prefill_body_keeps_whatever_shapes_the_prompt() -> None:
    """The prompt fields are all there; of the output only one unstreamed token is asked for."""
    sent = msgspec.json.decode(prefill_body(raw({**PROMPT_FIELDS, **OUTPUT_FIELDS}), PARAMS))

    asked: dict[str, Any] = {"stream": False, "max_tokens": 1, "max_completion_tokens": 1, "n": 1, "temperature": 0}
    asked["kv_transfer_params"] = PARAMS
    assert sent == {**PROMPT_FIELDS, **asked}


def test_for_the_first_token_the_prefill_body_keeps_whatever_decides_it() -> None:
    """What shapes the answer around its tokens stays out, and `min_tokens` may not exceed `max_tokens`."""
    body = raw({**PROMPT_FIELDS, **OUTPUT_FIELDS, "min_tokens": 5, "temperature": 0.7, "seed": 3, "top_logprobs": 2})

    sent = msgspec.json.decode(prefill_body(body, PARAMS, first_token=True))

    assert (sent["min_tokens"], sent["temperature"], sent["seed"], sent["top_logprobs"]) == (1, 0.7, 3, 2)
    assert (sent["max_tokens"], sent["stream"], sent["n"]) == (1, False, 1)
    assert not {"stop", "stream_options", "echo"} & set(sent)
    assert {name: sent[name] for name in PROMPT_FIELDS} == PROMPT_FIELDS


@pytest.mark.parametrize("least", [0, 0.0, None])
def test_no_least_number_of_tokens_stays_none(least: float | None) -> None:
    """One would keep the first token from ending the answer."""
    sent = msgspec.json.decode(prefill_body(raw({"prompt": "a", "min_tokens": least}), PARAMS, first_token=True))

    assert sent["min_tokens"] == least


def test_a_completion_is_not_given_chat_fields() -> None:
    """`max_completion_tokens` is replaced where it was, not added."""
    assert "max_completion_tokens" not in msgspec.json.decode(prefill_body(raw({"prompt": "a"}), PARAMS))


def test_the_decode_body_is_the_clients() -> None:
    """Values reach the decode node byte for byte, numbers that no float can hold included."""
    body = b'{"prompt":[1,2],"seed":123456789012345678901234567890,"temperature":1e-7,"top_p":0.10}'

    assert decode_body(split(body), None) == body
    assert decode_body(split(body), PARAMS) == body[:-1] + b',"kv_transfer_params":{"baton":{"id":"x"}}}'
