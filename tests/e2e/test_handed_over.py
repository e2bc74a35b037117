"""Answers that begin on one node and go on at another: the prefill node streams the first token, a decode node starts with what the client has."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from baton.contracts.http import PATH_HEADER, TOKEN_IDS_HEADER, TOKENS_COMMENT
from baton.contracts.kv_transfer import SINGLE, Grid, Grids, new_transfer_id
from baton.deploy.embedded_model import WEIGHTS
from tests.e2e.client import choice_difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import choose_prompts
from tests.e2e.stack import ANSWER_TIMEOUT_S, FLOAT32, Server, Stack
from tests.e2e.test_first_token import ASKED, compare

pytestmark = pytest.mark.e2e

ASYNCHRONOUS: Mapping[str, Any] = {"env": {"BATON_CPU_ASYNC_SCHEDULING": "1"}}
STAGES, RANKS = ("--pipeline-parallel-size", "2"), ("--tensor-parallel-size", "2")
DRAFTS = ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}))
FEW = ("greedy", "seeded", "a JSON schema")  # that are gone on with after one token, after several, and after all
SEVERAL = 5  # tokens
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tell me about the sea, and about the harbour."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
STREAMED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "chat with logprobs": (CHAT, {"messages": MESSAGES, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}),
    "chat, seeded": (CHAT, {"messages": MESSAGES, "max_tokens": 6, "temperature": 0.9, "seed": 3}),
    "chat with a tool": (CHAT, {"messages": MESSAGES, "max_tokens": 6, "tools": [TOOL], "tool_choice": "none"}),
    "chat as JSON": (CHAT, {"messages": MESSAGES, "max_tokens": 6, "response_format": {"type": "json_object"}}),
    "chat without a bound": (CHAT, {"messages": MESSAGES}),
    "completion": (COMPLETIONS, {"prompt": "The sea " * 200, "max_tokens": 6, "logprobs": 2, "return_token_ids": True}),
    "completion, text held back": (COMPLETIONS, {"prompt": "The harbour", "max_tokens": 6, "stop": ["a long stop"]}),
    "completion with its prompt": (COMPLETIONS, {"prompt": "The harbour", "max_tokens": 6, "echo": True}),
}
ENDED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "its own bound": (CHAT, {"messages": MESSAGES, "max_tokens": 1}),
    "a stop token": (COMPLETIONS, {"prompt": "The harbour", "max_tokens": 6, "stop_token_ids": list(range(1_000))}),
    "a stop string": (COMPLETIONS, {"prompt": "The harbour", "max_tokens": 6, "stop": [" ", "a", "e", "o"]}),
}


def prefill_leg(stack: Stack, **fields: Any) -> dict[str, Any]:
    """What the proxy adds to a body that the prefill node streams the beginning of."""
    return stack.leg("prefill", first_token=True, relays=True, **fields)


def decode_leg(stack: Stack, start: list[int], peer: str = "", **fields: Any) -> dict[str, Any]:
    """What it adds to one that a decode node goes on with."""
    return stack.leg("decode", peer, first_token=bool(peer), start=(tuple(start),), **fields)


def stream(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a stream's chunks without what differs between two answers that are equal."""
    asked = {"temperature": 0, "model": str(WEIGHTS), "stream": True, "stream_options": {"include_usage": True}} | body
    *events, done, rest = server.ask(path, asked).text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    return [
        {name: chunk[name] for name in chunk if name not in ("id", "created", "system_fingerprint")} for chunk in chunks
    ]


@pytest.mark.parametrize("name", STREAMED)
def test_the_prefill_node_streams_what_one_server_would_up_to_the_first_token(
    stack: Stack, trio: Trio, name: str
) -> None:
    """Then a chunk that says `abort`, and the usage."""
    streams_its_beginning(stack, trio.plain, trio.prefill, *STREAMED[name])


def streams_its_beginning(
    stack: Stack, plain: Server, prefill: Server, path: str, body: dict[str, Any], *, grids: Grids = SINGLE
) -> None:
    """Compare a prefill node's stream with the beginning of one server's; one at a time, since logprobs are compared exactly."""
    *got, end, usage = stream(prefill, path, body | prefill_leg(stack, grids=grids))
    wanted = stream(plain, path, body)
    for _ in range(10):  # a server joins tokens for which it was late
        if got != wanted[: len(got)]:
            wanted = stream(plain, path, body)

    assert got == wanted[: len(got)]
    assert len(got) == 1 + (path == CHAT)
    assert end["choices"][0]["finish_reason"] == "abort"
    assert usage["usage"]["completion_tokens"] == 1
    assert usage["usage"]["prompt_tokens"] == wanted[-1]["usage"]["prompt_tokens"]


def test_the_prefill_node_names_its_token_once(stack: Stack, trio: Trio) -> None:
    """In front of the event that says it."""
    body = {"model": str(WEIGHTS), "prompt": "The harbour", "max_tokens": 6, "stream": True, "return_token_ids": True}
    response = trio.prefill.ask(COMPLETIONS, body | prefill_leg(stack), headers={TOKEN_IDS_HEADER: "1"})

    named, said, *rest = response.text.splitlines()
    (token,) = json.loads(said.removeprefix("data: "))["choices"][0]["token_ids"]
    assert named == f"{TOKENS_COMMENT.decode()}0 {token}"
    assert not any(line.startswith(":") for line in rest)


@pytest.mark.parametrize("name", ENDED)
def test_an_answer_of_one_token_is_whole(stack: Stack, trio: Trio, name: str) -> None:
    """It says why it has ended; a stop string is found by the server above the engine."""
    path, body = ENDED[name]

    wanted, got = stream(trio.plain, path, body), stream(trio.prefill, path, body | prefill_leg(stack))

    assert got[:-1] == wanted[:-1]
    assert got[-1]["usage"]["completion_tokens"] == wanted[-1]["usage"]["completion_tokens"] == 1


def answer(server: Server, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a completion's choice, and the path that it took."""
    response = server.ask(COMPLETIONS, body)
    return response.json()["choices"][0], response.headers.get(PATH_HEADER, "")


KV: Mapping[str, str] = {
    "computed here": "local",
    "from the prefill node": "disaggregated",
    "does not come": "recomputed",
}


@pytest.mark.parametrize("kv", KV)
def test_a_decode_node_goes_on_as_one_server_would(stack: Stack, trio: Trio, kv: str) -> None:
    """Whatever decides what is sampled, and wherever the KV comes from."""
    many = kv == "from the prefill node"
    asked = {name: more for name, more in ASKED.items() if "n" not in more and (many or name in FEW)}

    goes_on(stack, (trio.plain, trio.prefill, trio.decode), kv, asked)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("prefill", "decode", "more"),
    [
        pytest.param((), (), ASYNCHRONOUS, id="asynchronous"),
        pytest.param(STAGES, RANKS, {}, id="pp2 to tp2"),
        pytest.param(RANKS, STAGES, {}, id="tp2 to pp2"),
        pytest.param(DRAFTS, DRAFTS, {}, id="drafts"),
    ],
)
def test_nodes_of_other_kinds(
    stack: Stack, trio: Trio, prefill: Sequence[str], decode: Sequence[str], more: Mapping[str, Any]
) -> None:
    """Several steps in flight, several ranks, drafts: one token on the one, no other on the other."""
    nodes = stack.node("prefill", *FLOAT32, *prefill, **more), stack.node("decode", *FLOAT32, *decode, **more)
    proxy = stack.proxy(nodes[:1], nodes[1:])
    grids = grids_of(nodes)
    asked, at_once = ASKED, 4
    if prefill is DRAFTS:  # vLLM on a CPU differs from itself, but for one greedy request at a time (docs/runner.md)
        asked, at_once = {"greedy": ASKED["greedy"]}, 1

    compare(trio.plain, nodes[1], proxy, asked, streamed=True, at_once=at_once)
    for path, body in STREAMED.values():
        if "logprobs" in body:  # ranks that add up in another order agree in most digits
            continue
        streams_its_beginning(stack, trio.plain, nodes[0], path, body, grids=grids)
    for kv in ("computed here", "from the prefill node"):
        goes_on(stack, (trio.plain, *nodes), kv, {name: one for name, one in asked.items() if "n" not in one}, grids)


def grids_of(nodes: tuple[Server, Server]) -> Grids:
    """The sizes of a prefill and a decode node."""
    infos = [node.info() for node in nodes]
    return Grids(*(Grid(each["tensor_parallel_size"], each["pipeline_parallel_size"]) for each in infos))


def goes_on(
    stack: Stack,
    servers: tuple[Server, Server, Server],
    kv: str,
    asked: Mapping[str, dict[str, Any]],
    grids: Grids = SINGLE,
) -> None:
    """Ask one server, then a decode node for the same with the first tokens of that answer: several; of few, also one and all."""
    plain, prefill, decode = servers
    prompts = [prompt[:200] for prompt in choose_prompts(2)]
    common: dict[str, Any] = {"model": str(WEIGHTS), "max_tokens": 8, "logprobs": 3, "return_token_ids": True}
    (address,) = prefill.info()["control_addresses"]
    peer = {"computed here": "", "from the prefill node": address, "does not come": "tcp://127.0.0.1:9"}[kv]
    before = decode.transfers()["scheduler"]["totals"]["started"]
    count = 0

    asked_for: list[tuple[Future[tuple[dict[str, Any], str]], dict[str, Any], int, str]] = []
    with ThreadPoolExecutor(16) as pool:
        for name, more in asked.items():
            unseen = 200 * [*KV].index(kv) + count
            body = common | {"prompt": [5 + unseen, *prompts[count % 2]]} | more
            wanted, _ = answer(plain, body)
            tokens = wanted["token_ids"]
            several = min(SEVERAL, len(tokens))
            for k in sorted({1, several, len(tokens)}) if name in FEW else [several]:
                transfer_id = new_transfer_id()
                leg = decode_leg(stack, tokens[:k], peer, transfer_id=transfer_id, grids=grids)
                going_on = pool.submit(answer, decode, body | leg)
                asked_for.append((going_on, wanted, k, f"{name}, {k} of {len(tokens)} tokens: {body}"))
                if peer == address:
                    lowered = {"min_tokens": min(1, body.get("min_tokens", 0))}
                    first = prefill_leg(stack, transfer_id=transfer_id, grids=grids)
                    stream(prefill, COMPLETIONS, body | lowered | first)
                if kv != "does not come":  # one at a time, as the reference was asked
                    going_on.result()
                count += 1
    for going_on, wanted, k, where in asked_for:
        got, path = going_on.result()
        assert choice_difference(wanted, got, k) == "", where
        # An answer that has ended waits for nothing.
        assert path == KV[kv] or (peer and k == len(wanted["token_ids"])), where

    assert decode.transfers()["scheduler"]["totals"]["started"] - before == count
    assert decode.integrity()["ok"]


def test_a_request_that_cannot_go_on_is_refused(stack: Stack, trio: Trio) -> None:
    """The decode node does not begin the answer again."""
    body = {"model": str(WEIGHTS), "prompt": "The harbour", "max_tokens": 5} | decode_leg(stack, [10_000_000])
    before = trio.decode.transfers()["scheduler"]["refused"].get("start", 0)

    response = httpx.post(trio.decode.url + COMPLETIONS, json=body, timeout=ANSWER_TIMEOUT_S)

    assert response.status_code == 500, response.text
    assert trio.decode.transfers()["scheduler"]["refused"]["start"] == before + 1
