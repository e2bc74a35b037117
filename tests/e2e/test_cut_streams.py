"""A real server's stream, cut after every event and gone on with by the same server, is the same stream."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from baton.proxy.request.endpoints import CHAT, COMPLETIONS
from baton.proxy.request.parse import parse
from baton.proxy.resume import events
from baton.proxy.resume.record import Record
from baton.proxy.resume.rules import ResumeStrategy
from baton.proxy.resume.stream import Stream
from tests.e2e.conftest import Trio

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TOKENS = 16
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
USAGE = {"stream_options": {"include_usage": True}}
EMOJI_BYTES = [f"{byte:02X}" for byte in "😀".encode()]


def emoji_tokens(trio: Trio) -> list[int]:
    """The byte tokens of an emoji and of a letter, as the server names them."""
    found = httpx.post(f"{trio.plain.url}/tokenize", json={"model": trio.model, "prompt": "😀a"}, timeout=30)
    ids: list[int] = found.json()["tokens"]
    assert len(ids) == 5
    return ids


def cases(trio: Trio) -> Iterator[tuple[str, dict[str, Any], ResumeStrategy]]:
    """Requests, and how they are resumed."""
    prompt = min(trio.prompts, key=lambda each: abs(len(each) - 40))
    chat = {"messages": [{"role": "user", "content": "Where is the harbour?"}]}
    bytes_only = {"allowed_token_ids": emoji_tokens(trio), "repetition_penalty": 1.3}
    yield COMPLETIONS, {"prompt": prompt, **USAGE}, ResumeStrategy.TOKEN_IDS
    yield COMPLETIONS, {"prompt": "Once 😀", "logprobs": 2, "return_token_ids": True}, ResumeStrategy.TOKEN_IDS
    yield COMPLETIONS, {"prompt": "Say 😀😀", **bytes_only}, ResumeStrategy.TOKEN_IDS
    yield CHAT, {**chat, **USAGE}, ResumeStrategy.TOKEN_IDS
    yield CHAT, {**chat, "temperature": 1.0, "seed": 11, **USAGE}, ResumeStrategy.REPLAY
    yield (
        COMPLETIONS,
        {"prompt": prompt, "frequency_penalty": 0.5, "stop": ["zzz", "never said"]},
        ResumeStrategy.REPLAY,
    )


def ask(trio: Trio, stream: Stream) -> list[bytes]:
    """The server's events for what is asked next."""
    headers = {"content-type": "application/json"}
    url = trio.plain.url + stream.asked.endpoint
    answer = httpx.post(url, content=msgspec.json.encode(stream.asked.fields), headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return [event + events.END for event in answer.content.split(events.END)[:-1]]


def comparable(content: bytes) -> dict[str, Any]:
    """All events as one, but for what is another answer's own: its name, and how much of its prompt was cached.

    How many tokens come in one event depends on how busy the server is.
    """
    assert content.endswith(events.DONE + events.END)
    found: dict[str, Any] = {}
    for event in content.split(events.END)[:-2]:
        body = json.loads(event.removeprefix(b"data: "))
        for name in ("id", "created", "system_fingerprint"):
            body.pop(name, None)
        (body.get("usage") or {}).pop("prompt_tokens_details", None)
        choices = body.pop("choices")
        found = joined(found, {**body, "choices": {str(choice.pop("index")): choice for choice in choices}})
    made: dict[str, Any] = rounded(found)
    return made


def joined(first: Any, second: Any, name: str = "") -> Any:
    """What two events say together: texts and lists go on, of all else the last word counts."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(second, dict):
        return {key: joined(first.get(key), second.get(key), key) for key in first | second}
    if isinstance(second, list) or name in ("text", "content"):
        return first + second
    return second


def rounded(value: Any) -> Any:
    """The same with logprobs as exact as they are."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 6))])
def test_a_real_stream_cut_after_every_event_goes_on_exactly(trio: Trio, number: int) -> None:
    """Greedy, seeded and penalised, completions and chats, characters cut in the middle, ids and logprobs."""
    path, more, way = list(cases(trio))[number]
    body = {"model": trio.model, **GREEDY, **more}
    request = parse(path, "id", [], msgspec.json.encode(body))
    whole = httpx.post(trio.plain.url + path, json=body, timeout=60).content
    first = ask(trio, Stream(request, "all"))
    for cut in range(1, len(first)):
        stream = Stream(request, "all")
        assert stream.way is way
        assert isinstance(stream.passing, Record)
        got = b"".join(map(stream.passing.take, first[:cut]))
        missing = stream.go_on()
        if missing is not None:
            got += missing
        else:
            got += b"".join(map(stream.passing.take, ask(trio, stream)))

        assert comparable(got) == comparable(whole), cut
