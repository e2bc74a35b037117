from typing import Any

import msgspec
import pytest

from baton.contracts.kv_transfer import FIELD
from baton.proxy.request.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from baton.proxy.request.fields import split
from baton.proxy.request.leg_bodies import decode_body, prefill_body, relayed_body
from baton.proxy.request.parse import parse

PARAMS = {"baton": {"id": "x"}}
ANSWER_ONLY = (
    "best_of echo repetition_detection request_id return_prompt_text return_token_ids return_tokens_as_token_ids stop"
    " stream_interval stream_options"
)
ANSWER_ONLY_OF_RESPONSES = (
    "background enable_response_messages include_reasoning max_tool_calls metadata request_id stop stream_options"
)
SAMPLING = (
    "allowed_token_ids bad_words frequency_penalty include logit_bias logprob_token_ids logprobs min_p min_tokens presence_penalty"
    " repetition_penalty seed stop_token_ids structured_outputs temperature top_k top_logprobs top_p"
)
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


def leg(path: str, body: dict[str, Any], *, first_token: bool = False) -> dict[str, Any]:
    request = parse(path, "id", [], msgspec.json.encode(body))
    return msgspec.json.decode(prefill_body(request, PARAMS, first_token=first_token), type=dict[str, Any])


def test_the_prefill_body_keeps_whatever_shapes_the_prompt() -> None:
    sent = leg(CHAT, {**PROMPT_FIELDS, **OUTPUT_FIELDS})

    asked: dict[str, Any] = {"stream": False, "max_tokens": 1, "max_completion_tokens": 1, "n": 1, "temperature": 0}
    asked["kv_transfer_params"] = PARAMS
    assert sent == {**PROMPT_FIELDS, **asked}


def test_for_the_first_token_the_prefill_body_keeps_whatever_decides_it() -> None:
    """What shapes the answer around its tokens stays out, and `min_tokens` may not exceed `max_tokens`."""
    chosen = {"min_tokens": 5, "temperature": 0.7, "seed": 3, "top_logprobs": 2}

    sent = leg(CHAT, {**PROMPT_FIELDS, **OUTPUT_FIELDS, **chosen}, first_token=True)

    assert (sent["min_tokens"], sent["temperature"], sent["seed"], sent["top_logprobs"]) == (1, 0.7, 3, 2)
    assert (sent["max_tokens"], sent["stream"], sent["n"]) == (1, False, 1)
    assert "stream_options" not in sent
    assert {name: sent[name] for name in PROMPT_FIELDS} == PROMPT_FIELDS


def test_a_least_number_of_tokens_that_is_none_is_the_decode_nodes_to_refuse() -> None:
    request = parse(COMPLETIONS, "id", [], b'{"model": "m", "prompt": "a", "min_tokens": 1e999}')

    assert msgspec.json.decode(decode_body(request.fields, None), type=dict[str, msgspec.Raw])[
        "min_tokens"
    ] == msgspec.Raw(b"1e999")
    assert b'"max_tokens":1' in prefill_body(request, {}, first_token=True)


@pytest.mark.parametrize("least", [0, 0.0, None])
def test_no_least_number_of_tokens_stays_none(least: float | None) -> None:
    """One would keep the first token from ending the answer."""
    sent = leg(COMPLETIONS, {"prompt": "a", "min_tokens": least}, first_token=True)

    assert sent["min_tokens"] == least


@pytest.mark.parametrize(
    ("endpoint", "prompt", "left_out"),
    [
        (COMPLETIONS, {"prompt": "a"}, ANSWER_ONLY),
        (CHAT, {"messages": []}, ANSWER_ONLY),
        (RESPONSES, {"input": "a"}, ANSWER_ONLY_OF_RESPONSES),
        (MESSAGES, {"messages": [], "max_tokens": 9}, "metadata stop_sequences"),
    ],
)
def test_a_prefill_leg_is_without_what_only_shapes_the_answer(
    endpoint: str, prompt: dict[str, Any], left_out: str
) -> None:
    sampling, asked = {*SAMPLING.split()}, {*SAMPLING.split(), *left_out.split()}

    first, other = (
        leg(endpoint, {**prompt, **dict.fromkeys(asked)}, first_token=is_first) for is_first in (True, False)
    )

    assert first.keys() & asked == sampling
    assert other.keys() & asked == {"temperature"}


def test_a_completion_is_not_given_chat_fields() -> None:
    """`max_completion_tokens` is replaced where it was, not added."""
    assert "max_completion_tokens" not in leg(COMPLETIONS, {"prompt": "a"})


def test_the_decode_body_is_the_clients() -> None:
    """Values reach the decode node byte for byte, numbers that no float can hold included."""
    body = b'{"prompt":[1,2],"seed":123456789012345678901234567890,"temperature":1e-7,"top_p":0.10}'

    assert decode_body(split(body), None) == body
    assert decode_body(split(body), PARAMS) == body[:-1] + b',"kv_transfer_params":{"baton":{"id":"x"}}}'


def test_the_relayed_body_is_the_clients_but_for_the_least_number_of_tokens() -> None:
    body = b'{"prompt":[1,2],"stream":true,"min_tokens":5,"max_tokens":9'

    sent = relayed_body(split(body + b"}"), PARAMS)

    assert sent == body.replace(b"5", b"1") + b',"kv_transfer_params":{"baton":{"id":"x"}}}'


def test_a_response_is_asked_for_one_token_that_is_not_stored() -> None:
    """What shapes the prompt stays; what shapes the output, or keeps state, does not."""
    kept: dict[str, Any] = {
        "model": "m",
        "input": [{"role": "user", "content": "a"}],
        "instructions": "be brief",
        "cache_salt": "s",
    }
    kept |= {"tools": [{"type": "function", "name": "f"}], "reasoning": {"effort": "low"}}
    dropped = {"stop": ["a"], "seed": 1, "top_p": 0.5, "include": ["x"], "request_id": "r", "max_tool_calls": 3}

    made = leg(RESPONSES, {**kept, **dropped, "stream": True, "background": False, "max_output_tokens": 99})

    asked = {"max_output_tokens": 1, "stream": False, "store": False, "temperature": 0, FIELD: PARAMS}
    assert made == {**kept, **asked}


def test_a_message_is_asked_for_one_token() -> None:
    """VLLM compares a thinking budget with `max_tokens`, but not in what says that it is a prefill leg."""
    kept: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}], "system": "be brief"}
    kept |= {"thinking": {"type": "enabled", "budget_tokens": 2000}}

    made = leg(MESSAGES, {**kept, "max_tokens": 4000, "stream": True, "stop_sequences": ["a"], "top_k": 5})

    params = {**PARAMS, "do_remote_decode": True}
    assert made == {**kept, "max_tokens": 1, "stream": False, "temperature": 0, FIELD: params}
