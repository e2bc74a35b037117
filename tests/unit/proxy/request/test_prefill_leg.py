import json
from typing import Any

import pytest

from baton.contracts.kv_transfer import FIELD
from baton.proxy.request.endpoints import CHAT, MESSAGES, RESPONSES
from baton.proxy.request.parse import parse
from baton.proxy.request.prefill_leg import prefill_leg

PARAMS = {"baton": {"v": 1}}


def leg(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The prefill leg of a request."""
    made: dict[str, Any] = json.loads(prefill_leg(parse(path, "id", [], json.dumps(body).encode()), PARAMS))
    return made


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


@pytest.mark.parametrize("path", [CHAT])
def test_a_chat_is_asked_as_before(path: str) -> None:
    """`request/leg_bodies.py` makes it."""
    made = leg(path, {"model": "m", "messages": [], "max_tokens": 9})

    assert (made["max_tokens"], made["n"], made[FIELD]) == (1, 1, PARAMS)
