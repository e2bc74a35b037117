import json
from typing import Any

from baton.loadtest.traffic.script import Ask, Form


def body(form: Form, **ask: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(form.body(Ask(output_tokens=4, **ask)))
    return decoded


def test_a_completion_is_greedy_streamed_and_of_fixed_length() -> None:
    """Usage is asked for, since events are no tokens."""
    assert body(Form(model="m", chat=False), prompt=(1, 2)) == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 4,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_chat_has_messages_and_the_newer_name_of_the_limit() -> None:
    """Servers that know only OpenAI's fields are not told of `ignore_eos`. Further fields are sent; an ask's own win, and ours stay."""
    form = Form(model="m", chat=True, ignore_eos=False, more={"top_p": 1, "stream": False})
    got = body(form, prompt=[{"role": "user", "content": "x"}], more={"top_p": 0.5})

    assert got["messages"] == [{"role": "user", "content": "x"}]
    assert got["max_completion_tokens"] == 4
    assert not {"prompt", "max_tokens", "ignore_eos"} & set(got)
    assert (got["top_p"], got["stream"]) == (0.5, True)
