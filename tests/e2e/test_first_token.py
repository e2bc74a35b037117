"""The prefill node samples the first token as the client asks for it, and the decode node goes on from there as one server would."""

import itertools
import json
import signal
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any, NamedTuple

import httpx
import pytest

from baton.contracts.http import PATH_HEADER
from baton.deploy.embedded_model import WEIGHTS
from tests.e2e.client import choice_difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import choose_prompts
from tests.e2e.stack import ANSWER_TIMEOUT_S, Server

pytestmark = pytest.mark.e2e

PROMPT_TOKENS = 600  # three chunks on the prefill node
EVENTS = {"/v1/completions": 1, "/v1/chat/completions": 2, "/v1/messages": 3}  # up to the first token
FEW = {"allowed_token_ids": [4, 21, 84, 267, 300, 479, 500, 609]}  # so few that they repeat, and penalties matter
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "tags": {"enum": ["a", "b", "cc"]}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
WORDS = r"([A-Z][a-z]{2,9} ){5,9}(is|was) [0-9]{3}\."

ASKED: Mapping[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "without logprobs": {"temperature": 0, "logprobs": None},
    "seeded": {"temperature": 0.8, "seed": 7},
    "seeded, cut": {"temperature": 0.9, "seed": 8, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "penalties": FEW | {"temperature": 0, "frequency_penalty": 1.8, "presence_penalty": 1.2, "repetition_penalty": 1.4},
    "seeded, penalised": FEW | {"temperature": 0.8, "seed": 5, "frequency_penalty": 1.0},
    "an end that the request chooses": {
        "temperature": 0.8,
        "seed": 3,
        "stop_token_ids": list(range(40, 400, 7)),
        "min_tokens": 2,
    },
    "bias and bad words": {"temperature": 0, "logit_bias": {"300": 2.0}, "bad_words": ["the", " a"]},
    "a JSON schema": {"temperature": 0, "structured_outputs": {"json": SCHEMA}},
    "a JSON schema, seeded": {"temperature": 0.8, "seed": 4, "structured_outputs": {"json": SCHEMA}},
    "a pattern": {"temperature": 0.8, "seed": 6, "structured_outputs": {"regex": WORDS}},
    "a choice": {"temperature": 0, "structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
    "a stop string": {"temperature": 0.8, "seed": 9, "stop": ["e", " t"]},
    "several answers": {"temperature": 0.8, "seed": 11, "n": 3},
    "an end at once": {"temperature": 0.8, "seed": 13, "stop_token_ids": list(range(1_000))},
    "two tokens": {"temperature": 0.8, "seed": 10, "max_tokens": 2},
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_answers_are_those_of_one_server(trio: Trio, streamed: bool) -> None:
    """Whatever decides which token comes first; most prompts lie in the decode node's prefix cache already."""
    compare(trio.plain, trio.decode, trio.proxy, ASKED, streamed=streamed)


def compare(
    plain: Server,
    decode: Server,
    proxy: Server,
    asked: Mapping[str, dict[str, Any]],
    *,
    streamed: bool,
    at_once: int = 4,
) -> None:
    """Ask the same of one server and of a pair; every request must start with the prefill node's token."""
    prompts = [prompt[:PROMPT_TOKENS] for prompt in choose_prompts(3)]
    common: dict[str, Any] = {"model": str(WEIGHTS), "max_tokens": 12, "logprobs": 3, "return_token_ids": True}
    each_its_own = itertools.islice(itertools.cycle(prompts), streamed, None)
    bodies = [(name, common | {"prompt": next(each_its_own)} | more) for name, more in asked.items()]
    batches = at_once > 1
    if batches:
        bodies.append(("a batch", common | {"prompt": prompts, "temperature": 0.8, "seed": 12}))
    before = decode.transfers()["scheduler"]["totals"]

    with ThreadPoolExecutor(at_once) as pool:
        wanted = list(pool.map(lambda one: ask(plain, one[1], streamed=streamed), bodies))
        got = list(pool.map(lambda one: ask(proxy, one[1], streamed=streamed), bodies))

    for (name, body), one, other in zip(bodies, wanted, got, strict=True):
        where = f"{name}: {body}"
        assert other.path == "disaggregated", where
        assert [choice_difference(*pair) for pair in zip(one.choices, other.choices, strict=True)] == [""] * len(
            one.choices
        ), where
        assert other.usage == one.usage, where
    after = decode.transfers()["scheduler"]["totals"]
    started = after["started"] - before["started"]
    each = [body.get("n", 1) if streamed else 1 for _, body in bodies]  # a whole answer has one first token from there
    expected = sum(each) + batches * (len(prompts) - 1)
    # Of streams that end with their first token the prefill node sends all: the decode node may not have begun.
    ended = sum(one.usage[1] == 1 for one in wanted) if streamed else 0
    assert expected - ended <= started <= expected
    assert after["recomputed"] == before["recomputed"]
    assert decode.integrity()["ok"]


class Told(NamedTuple):
    """What a server has answered."""

    choices: list[dict[str, Any]]
    usage: tuple[int, int]
    path: str


def ask(server: Server, body: dict[str, Any], *, streamed: bool) -> Told:
    """Ask for a completion; the pieces of a stream are put together."""
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    response = server.ask("/v1/completions", body | more)
    path = response.headers.get(PATH_HEADER, "")
    if streamed:
        *events, done, rest = response.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        parts = [json.loads(event.removeprefix("data: ")) for event in events]
        choices: dict[int, dict[str, Any]] = {}
        for piece in (piece for part in parts for piece in part["choices"]):
            add(piece, choices.setdefault(piece["index"], {"token_ids": [], "text": "", "logprobs": defaultdict(list)}))
        return Told([choices[index] for index in sorted(choices)], usage_of(parts[-1]), path)
    return Told(response.json()["choices"], usage_of(response.json()), path)


def add(piece: dict[str, Any], choice: dict[str, Any]) -> None:
    choice["token_ids"] += piece["token_ids"] or ()
    choice["text"] += piece["text"]
    choice["logprobs"]["token_logprobs"] += (piece["logprobs"] or {}).get("token_logprobs") or ()
    choice.update({name: piece[name] for name in ("finish_reason", "stop_reason") if piece["finish_reason"]})


def usage_of(part: dict[str, Any]) -> tuple[int, int]:
    return part["usage"]["prompt_tokens"], part["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/completions", {"temperature": 0.8, "seed": 7}),
        ("/v1/completions", {"temperature": 0.8, "seed": 7, "n": 3}),
        ("/v1/chat/completions", {"temperature": 0}),
        ("/v1/messages", {"temperature": 0}),
    ],
)
def test_the_client_has_its_first_token_while_the_decode_node_is_stopped(
    trio: Trio, path: str, more: dict[str, Any]
) -> None:
    """No step and no byte of the decode node's stands before it; once that goes on, the stream is one server's."""
    body: dict[str, Any] = {"model": trio.model, "max_tokens": 12, "stream": True, **more}
    prompt = "Who is Clara Voss, and what did the harbour master write?"
    body |= {"prompt": prompt} if path == "/v1/completions" else {"messages": [{"role": "user", "content": prompt}]}
    wanted = texts(trio.plain.ask(path, body).text)
    before = trio.proxy.metrics().get('baton_first_tokens_total{source="relayed"}', 0.0)

    first: list[str] = []
    for _ in range(3):  # on a busy machine the node's server may be later than the decode node
        if not first:
            first, got = ask_stopped(trio, path, body)
            assert "".join(got) == "".join(wanted)

    after = trio.proxy.metrics()
    assert first
    assert "".join(wanted).startswith("".join(first))
    assert after['baton_first_tokens_total{source="relayed"}'] > before
    assert after["baton_second_token_gap_seconds_count"] >= 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_text_that_may_begin_a_stop_string_waits_for_the_next_token(trio: Trio, path: str) -> None:
    """Also where the decode node is late: the prefill node's server makes text of it when it is told of an end."""
    asked = [{"role": "user", "content": "Who is Clara Voss?"}]
    body: dict[str, Any] = {"model": trio.model, "max_tokens": 12, "stream": True, "temperature": 0, "messages": asked}
    answer = "".join(texts(trio.plain.ask(path, body).text))
    body["stop_sequences" if path == "/v1/messages" else "stop"] = [answer[:8]]
    wanted = trio.plain.ask(path, body).text
    trio.decode.signal(signal.SIGSTOP)
    going_on = [Timer(60, trio.decode.signal, [signal.SIGCONT])]
    going_on[0].start()
    try:
        with httpx.stream("POST", trio.proxy.url + path, json=body, timeout=ANSWER_TIMEOUT_S) as response:
            lines = response.iter_lines()
            got = next(lines) + "\n"  # the prefill node's token has come; its server is told of an end in 0.1 s
            going_on.append(Timer(1, trio.decode.signal, [signal.SIGCONT]))
            going_on[1].start()
            got += "\n".join(lines)
    finally:
        going_on.pop().join()
        going_on[0].cancel()

    assert kinds(got) == kinds(wanted)
    assert "".join(texts(got)) == "".join(texts(wanted)) == ""


def kinds(stream: str) -> list[Any]:
    """What the events are, and how the answer ends."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    ends = [(event.get("delta") or {}).get("stop_reason") for event in events]
    choices = [choice.get("finish_reason") for event in events for choice in event.get("choices", [])]
    return [event.get("type") or event.get("error") for event in events] + [*filter(None, ends + choices)]


def ask_stopped(trio: Trio, path: str, body: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Ask for a stream while the decode node is stopped; return the texts that came before it went on, for 15 s at most, and all."""
    trio.decode.signal(signal.SIGSTOP)
    late = Timer(15, trio.decode.signal, [signal.SIGCONT])
    late.start()
    try:
        with httpx.stream("POST", trio.proxy.url + path, json=body, timeout=ANSWER_TIMEOUT_S) as response:
            lines, first = response.iter_lines(), ""
            while len(texts(first)) < EVENTS[path]:
                first += next(lines) + "\n"
            in_time = late.is_alive()
            trio.decode.signal(signal.SIGCONT)
            return texts(first) if in_time else [], texts(first + "\n".join(lines))
    finally:
        late.cancel()
        trio.decode.signal(signal.SIGCONT)


def texts(stream: str) -> list[str]:
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event.get("choices", [event])]
    deltas = [choice.get("delta", {}) for choice in choices]
    return [
        choice.get("text") or delta.get("content") or delta.get("text") or ""
        for choice, delta in zip(choices, deltas, strict=True)
    ]
