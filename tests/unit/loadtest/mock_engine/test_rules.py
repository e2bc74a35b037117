import json
from typing import Any

import pytest

from baton.loadtest.mock_engine.rules import CHAT, COMPLETIONS, RefusedError, understand

GOOD: dict[str, Any] = {"model": "mock", "prompt": "x" * 40, "max_tokens": 3}


def ask(path: str = COMPLETIONS, content_type: str = "application/json", **changes: Any) -> Any:
    body = {name: value for name, value in {**GOOD, **changes}.items() if value is not ...}
    return understand(path, content_type, json.dumps(body).encode(), 16)


def test_a_good_request_is_understood() -> None:
    """Tokens, stream and usage are read; what is not said has vLLM's default."""
    asked = ask(stream=True, stream_options={"include_usage": True}, return_token_ids=True)

    assert (asked.tokens, asked.prompt_tokens, asked.stream, asked.usage, asked.token_ids) == (3, 11, True, True, True)
    assert ask(max_tokens=...).tokens == 16
    assert ask(prompt=[1, 2, 3]).prompt_tokens == 3
    assert ask(max_completion_tokens=2).tokens == 2
    assert ask(path=CHAT, messages=[{"role": "user", "content": "hi"}]).chat


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        (415, {"content_type": "text/plain"}),
        (404, {"model": "other"}),
        (400, {"prompt": ...}),
        (400, {"prompt": ["two", "prompts"]}),
        (400, {"path": CHAT}),
        (400, {"path": CHAT, "messages": [{"content": "hi"}]}),
        (400, {"max_tokens": 0}),
        (400, {"max_tokens": 1 << 17}),
        (400, {"stream": "yes"}),
        (400, {"stream_options": {"include_usage": True}}),
        (400, {"n": 2}),
        (400, {"temperature": -1}),
    ],
)
def test_what_vllm_refuses_is_refused(status: int, changes: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as caught:
        ask(**changes)

    assert caught.value.status == status


@pytest.mark.parametrize("data", [b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    """A body that is no JSON object is a 400, never a crash."""
    with pytest.raises(RefusedError) as caught:
        understand(COMPLETIONS, "application/json", data, 16)

    assert caught.value.status == 400
