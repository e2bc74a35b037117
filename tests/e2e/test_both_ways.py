"""Nodes that send and receive: a stream's KV goes to another decode node while it runs, an answer's KV returns to the prefill node."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from baton.contracts.http import CANCEL_PATH, PATH_HEADER
from baton.contracts.kv_transfer import new_transfer_id
from tests.e2e.fidelity import choose_prompts
from tests.e2e.stack import ANSWER_TIMEOUT_S, FLOAT32, Server, Stack
from tests.e2e.targets import COUNT_FILE
from tests.e2e.waiting import leftovers
from tests.support import slow_step
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

BLOCK_TOKENS = 32
PROMPT_TOKENS = 300
HAS_TOKENS, ANSWER_TOKENS = 100, 140  # tokens that have been streamed when a stream moves; of the whole answer
STEP_S = 0.02  # of a decode node
FLAGS = (*FLOAT32, "--block-size", str(BLOCK_TOKENS), "--both-ways", "true", *slow_step.FLAGS)
COMPLETIONS = "/v1/completions"


class Nodes(NamedTuple):
    stack: Stack
    prefill: Server
    first: Server
    second: Server
    plain: Server

    def computed(self, server: Server, name: str) -> int:
        """Tokens that a node has computed for the request with this id, of the connector's scheduler's own count."""
        lines = (line.split() for line in Path(server.env[COUNT_FILE] or "").read_text().splitlines())
        return sum(int(tokens) for request_id, tokens in lines if name in request_id)


@pytest.fixture(scope="module", params=["0", pytest.param("1", marks=pytest.mark.exhaustive)], ids=["", "asynchronous"])
def nodes(stack: Stack, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("computed")

    def node(role: str, name: str, step_s: float) -> Server:
        return stack.node(
            role,
            *FLAGS,
            *(() if role == "prefill" else ("--control-port", str(free_port()))),
            name=name,
            target="tests.e2e.targets:counting_node",
            kwargs={"role": role},
            env={
                COUNT_FILE: str(folder / name),
                slow_step.STEP_S: str(step_s),
                "BATON_CPU_ASYNC_SCHEDULING": request.param,
            },
        )

    with stack.stopping():
        made = node("prefill", "prefill", 0), node("decode", "first", STEP_S), node("decode", "second", STEP_S)
        plain = stack.plain(*FLOAT32, "--block-size", str(BLOCK_TOKENS))
        for server in (*made, plain):
            server.wait_ready()
        yield Nodes(stack, *made, plain)


@pytest.fixture(autouse=True)
def nothing_is_left(nodes: Nodes) -> Iterator[None]:
    """All blocks of the pools are free again, by the connector's count and by vLLM's gauge, and the nodes' own checks find nothing."""
    yield
    assert leftovers(nodes.prefill, nodes.first, nodes.second) == []


def prompt_of(number: int) -> list[int]:
    """A prompt that no other test has, not even its first block."""
    return [900 + number, *max(choose_prompts(3), key=len)[: PROMPT_TOKENS - 1]]


def body_of(prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return asked | {"return_token_ids": True} | more


def ask(server: Server, body: dict[str, Any], name: str = "") -> tuple[list[int], str]:
    """Return the tokens of a whole answer, and the path that it took."""
    response = server.ask(COMPLETIONS, {"model": server.argv[1], **body}, headers={"x-request-id": name})
    return response.json()["choices"][0]["token_ids"], response.headers.get(PATH_HEADER, "")


class Streaming:
    """A stream that is read in a thread; it can be left."""

    def __init__(self, server: Server, body: dict[str, Any]) -> None:
        self.tokens: list[int] = []
        self._has = threading.Condition()
        self._leave = threading.Event()
        body = {"model": server.argv[1], "stream": True, **body}
        self._thread = threading.Thread(target=self._read, args=(server.url + COMPLETIONS, body))
        self._thread.start()

    def _read(self, url: str, body: dict[str, Any]) -> None:
        with httpx.stream("POST", url, json=body, timeout=ANSWER_TIMEOUT_S) as got:
            for line in got.iter_lines():
                if line.startswith("data: {"):
                    with self._has:
                        self.tokens += json.loads(line[6:])["choices"][0]["token_ids"]
                        self._has.notify_all()
                if self._leave.is_set():
                    return

    def until(self, tokens: int) -> list[int]:
        with self._has:
            assert self._has.wait_for(lambda: len(self.tokens) >= tokens, ANSWER_TIMEOUT_S)
            return self.tokens[:tokens]

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def end(self, *, leave: bool = False) -> list[int]:
        if leave:
            self._leave.set()
        self._thread.join(ANSWER_TIMEOUT_S)
        return self.tokens


def send(
    stack: Stack, source: Server, destination: Server, prompt: list[int], start: list[int], *, max_tokens: int
) -> tuple[list[int], str, str]:
    """Send the KV of a prompt and what followed it from one node to another, which goes on; tokens, path and transfer id."""
    transfer_id = new_transfer_id()
    (address,) = source.info()["control_addresses"]
    fields: dict[str, Any] = {"transfer_id": transfer_id, "start": (tuple(start),)}
    sent = body_of(prompt, 1, **stack.leg("prefill", **fields))
    received = body_of(prompt, max_tokens, **stack.leg("decode", address, start_sent=True, **fields))
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(ask, source, sent, f"sent-{transfer_id}")
        tokens, path = ask(destination, received, f"received-{transfer_id}")
        sending.result()
    return tokens, path, transfer_id


def test_such_nodes_say_so(nodes: Nodes) -> None:
    infos = [node.info() for node in (nodes.prefill, nodes.first, nodes.second)]

    assert [info["role"] for info in infos] == ["prefill", "decode", "decode"]
    assert all(info["both_ways"] and len(info["control_addresses"]) == 1 for info in infos)


def test_a_running_streams_kv_goes_to_another_decode_node(nodes: Nodes) -> None:
    """The source computes less than a block, the destination one token and what comes after; the stream goes on."""
    prompt = prompt_of(0)
    wanted, _ = ask(nodes.plain, body_of(prompt, ANSWER_TOKENS))
    stream = Streaming(nodes.first, body_of(prompt, ANSWER_TOKENS))
    start = stream.until(HAS_TOKENS)

    tokens, path, transfer_id = send(nodes.stack, nodes.first, nodes.second, prompt, start, max_tokens=ANSWER_TOKENS)

    assert (tokens, path) == (wanted, "disaggregated")
    assert stream.end() == wanted
    assert nodes.computed(nodes.first, f"sent-{transfer_id}") <= BLOCK_TOKENS
    assert nodes.computed(nodes.second, f"received-{transfer_id}") == ANSWER_TOKENS - HAS_TOKENS


def test_what_has_come_already_is_not_sent_again(nodes: Nodes) -> None:
    """A first transfer while the stream runs, one of the rest when it has been stopped."""
    prompt = prompt_of(1)
    wanted, _ = ask(nodes.plain, body_of(prompt, ANSWER_TOKENS))
    stream = Streaming(nodes.first, body_of(prompt, ANSWER_TOKENS))
    send(nodes.stack, nodes.first, nodes.second, prompt, stream.until(HAS_TOKENS // 2), max_tokens=HAS_TOKENS // 2 + 1)
    before = nodes.second.transfers()["scheduler"]["totals"]["tokens_received"]
    assert stream.is_running()
    stream.until(HAS_TOKENS)
    has = list(stream.end(leave=True))

    tokens, path, transfer_id = send(nodes.stack, nodes.first, nodes.second, prompt, has, max_tokens=ANSWER_TOKENS)

    assert (tokens, path) == (wanted, "disaggregated")
    cached = (PROMPT_TOKENS + HAS_TOKENS // 2) // BLOCK_TOKENS * BLOCK_TOKENS
    after = nodes.second.transfers()["scheduler"]["totals"]["tokens_received"]
    assert after - before == PROMPT_TOKENS + len(has) - 1 - cached
    assert nodes.computed(nodes.first, f"sent-{transfer_id}") <= BLOCK_TOKENS
    assert nodes.computed(nodes.second, f"received-{transfer_id}") == ANSWER_TOKENS - len(has)


def test_an_answer_returns_to_the_prefill_node(nodes: Nodes) -> None:
    """The next turn's prompt computes there only what is new, and is answered as by one server."""
    prompt = prompt_of(2)
    answer, _ = ask(nodes.first, body_of(prompt, HAS_TOKENS))

    _, path, transfer_id = send(nodes.stack, nodes.first, nodes.prefill, prompt, answer, max_tokens=HAS_TOKENS + 1)
    turn = [*prompt, *answer, *prompt_of(3)[: BLOCK_TOKENS * 2]]
    tokens, _ = ask(nodes.prefill, body_of(turn, 4), f"turn-{transfer_id}")

    assert path == "disaggregated"
    assert nodes.computed(nodes.first, f"sent-{transfer_id}") <= BLOCK_TOKENS
    assert nodes.computed(nodes.prefill, f"received-{transfer_id}") == 1
    new = len(turn) - (PROMPT_TOKENS + HAS_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert nodes.computed(nodes.prefill, f"turn-{transfer_id}") == new + 3
    assert tokens == ask(nodes.plain, body_of(turn, 4))[0]


@pytest.mark.parametrize("to", ["second", "prefill"])
def test_either_leg_may_be_left(nodes: Nodes, to: str) -> None:
    """Blocks come back on both nodes, and the stream that was to move goes on."""
    prompt, destination = prompt_of(4 if to == "second" else 5), getattr(nodes, to)
    wanted, _ = ask(nodes.plain, body_of(prompt, ANSWER_TOKENS))
    stream = Streaming(nodes.first, body_of(prompt, ANSWER_TOKENS))
    start = stream.until(HAS_TOKENS)
    (address,) = nodes.first.info()["control_addresses"]

    for left in ("received", "sent"):
        fields: dict[str, Any] = {"transfer_id": new_transfer_id(), "start": (tuple(start),)}
        received = body_of(prompt, ANSWER_TOKENS, **nodes.stack.leg("decode", address, start_sent=True, **fields))
        sent = body_of(prompt, 1, **nodes.stack.leg("prefill", **fields))
        if left == "received":  # it waits for a prompt that has not come
            with pytest.raises(httpx.ReadTimeout):
                post(destination, received, 0.5)
            continue
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(ask, destination, received)
            with pytest.raises(httpx.ReadTimeout):
                post(nodes.first, sent, 0.002)
            order = {"transfer_ids": [fields["transfer_id"]]}  # as the proxy tells both nodes
            for node in (nodes.first, destination):
                headers = {"authorization": f"Bearer {node.token}"}
                httpx.post(node.url + CANCEL_PATH, json=order, headers=headers, timeout=10).raise_for_status()
            assert going.result()[0] == wanted

    assert stream.end() == wanted


def post(server: Server, body: dict[str, Any], within_s: float) -> None:
    """Post a request and leave if its answer does not come in time."""
    timeout = httpx.Timeout(ANSWER_TIMEOUT_S, read=within_s)
    httpx.post(server.url + COMPLETIONS, json={"model": server.argv[1], **body}, timeout=timeout)
