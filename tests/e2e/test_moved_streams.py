"""Streams leave a decode node that is alive, with their KV: one server's tokens, and the other node computes what is new.

`MOVED_STREAMS` sets how many move in the long form, 16 at a time, as clients leave and nodes are killed. With -s the longest wait of a client
and the time until all have moved are printed.
"""

import asyncio
import itertools
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from baton.proxy.request.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.e2e.stack import ANSWER_TIMEOUT_S, FLOAT32, Server, Stack
from tests.e2e.targets import COUNT_FILE
from tests.e2e.test_both_ways import prompt_of
from tests.e2e.test_cut_streams import ASKED, CLOSE, TOOLS, comparable
from tests.e2e.waiting import leftovers
from tests.support import slow_step
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

STREAMS = int(os.environ.get("MOVED_STREAMS", "64"))
AT_ONCE = 16
ADMIN = "an admin token for tests"
BLOCK_TOKENS = 32
ANSWER_TOKENS = 140
HAS_EVENTS = 40  # of each stream, when it is to move
STEP_S = 0.04  # of a decode node: an answer takes some seconds
FLAGS = (*FLOAT32, *CLOSE, *TOOLS, "--block-size", str(BLOCK_TOKENS))
WORDS = {"max_tokens": ANSWER_TOKENS, "ignore_eos": True, "return_token_ids": True}
SAMPLED = {"max_tokens": ANSWER_TOKENS, "return_token_ids": True, "temperature": 0.8, "seed": 9}
LONG: dict[str, dict[str, Any]] = {  # completions of a long prompt
    "greedy": {**WORDS, "temperature": 0},
    "seeded": {**WORDS, "temperature": 1.0, "seed": 11},
    "whole": {**WORDS, "temperature": 0, "stream": False},
    "guided": {**SAMPLED, "structured_outputs": {"regex": "(ab|cd| ){400}"}},
    "log probabilities": {**WORDS, "temperature": 0, "logprobs": 2},
    "two answers": {**WORDS, "temperature": 1.0, "seed": 4, "n": 2},
}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "minLength": 400}}, "required": ["text"]}
FUNCTION = {"name": "talk", "parameters": SCHEMA}
TOOL = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {  # of short prompts, by other routes
    "tools required": (CHAT, {**ASKED, **TOOL, "max_tokens": ANSWER_TOKENS, "temperature": 0.8, "seed": 9}),
    "chat": (CHAT, {**ASKED, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0, "logprobs": True}),
    "message": (
        MESSAGES,
        {
            **ASKED,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "tools": [{"name": "talk", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
        },
    ),
    "response": (
        RESPONSES,
        {
            "input": "Where is it?",
            "max_output_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": "required",
        },
    ),
}
QUICK = ["greedy", "seeded", "whole", "guided"]
FAULTS = ["none", "clients leave", "source is killed", "destination is killed"]


class Nodes(NamedTuple):
    stack: Stack
    prefill: Server
    decode: list[Server]
    proxy: Server
    plain: Server

    def order(self, what: str, node: Server, **more: Any) -> Any:
        """Tell the proxy something of a node; returns what it says of that."""
        headers = {"authorization": f"Bearer {ADMIN}"}
        url, body = f"{self.proxy.url}/admin/nodes/{what}", {"url": node.url, **more}
        return self.proxy.http.post(url, json=body, headers=headers, timeout=30).raise_for_status().json()["nodes"][0]

    def view(self, node: Server) -> Any:
        headers = {"authorization": f"Bearer {ADMIN}"}
        found = self.proxy.http.get(f"{self.proxy.url}/admin/nodes", headers=headers, timeout=30)
        return next(each for each in found.raise_for_status().json()["nodes"] if each["url"] == node.url)

    def computed(self, server: Server, name: str) -> int:
        """Tokens that a node has computed for the request with this name."""
        lines = (line.split() for line in Path(server.env[COUNT_FILE] or "").read_text().splitlines())
        return sum(int(tokens) for request_id, tokens in lines if name in request_id)


@pytest.fixture(scope="module")
def nodes(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """One prefill node, and two decode nodes that send KV too, each on a core of its own: both work while streams move."""
    folder = tmp_path_factory.mktemp("computed")
    token = folder / "admin.token"
    token.write_text(f"{ADMIN}\n")

    cores = sorted(os.sched_getaffinity(0))

    def node(role: str, name: str, step_s: float, *flags: str, core: int) -> Server:
        (folder / name).touch()
        env = {COUNT_FILE: str(folder / name), slow_step.STEP_S: str(step_s)}
        target, flags = "tests.e2e.targets:counting_node", (*FLAGS, *slow_step.FLAGS, *flags)
        return stack.node(role, *flags, name=name, target=target, kwargs={"role": role}, env=env, cpus=[core])

    with stack.stopping():
        prefill = node("prefill", "moved-prefill", 0, core=cores[0])
        both_ways = ("--both-ways", "true", "--control-port")
        decode = [
            node("decode", f"moved-{at}", STEP_S, *both_ways, str(free_port()), core=core)
            for at, core in enumerate((cores[0], cores[-1]))
        ]
        plain = stack.plain(*FLAGS)
        plain.wait_ready()
        proxy = stack.proxy([prefill], decode, "--admin-token-file", str(token), name="moving-proxy")
        yield Nodes(stack, prefill, decode, proxy, plain)


@dataclass
class Client:
    """One answer, as it came."""

    kind: str
    name: str
    path: str
    body: dict[str, Any]
    came: bytearray = field(default_factory=bytearray)
    at_s: list[float] = field(default_factory=list)  # when each piece came
    has: asyncio.Event = field(default_factory=asyncio.Event)  # so many events that it may move
    had: int = 0  # events, when the order was given

    async def read(self, http: httpx.AsyncClient, url: str) -> None:
        async with http.stream("POST", url + self.path, json=self.body, headers={"x-request-id": self.name}) as got:
            assert got.status_code == 200, await got.aread()
            async for piece in got.aiter_raw():
                self.at_s.append(time.monotonic())
                self.came += piece
                if self.events >= HAS_EVENTS:
                    self.has.set()
        self.has.set()

    @property
    def events(self) -> int:
        return self.came.count(b"\n\n")

    @property
    def is_whole(self) -> bool:
        return not self.body["stream"]

    @property
    def says(self) -> Any:
        return json.loads(bytes(self.came))["choices"] if self.is_whole else comparable(bytes(self.came))

    @property
    def tokens(self) -> int:
        """How many its first choice has."""
        said = self.says
        return len((said[0] if self.is_whole else said["choices"]["0"])["token_ids"])

    def longest_wait_s(self, since_s: float) -> float:
        """Between two pieces, the second of which came after some time."""
        return max((later - one for one, later in itertools.pairwise(self.at_s) if later > since_s), default=0.0)


def client_of(nodes: Nodes, number: int, kind: str, salt: str) -> Client:
    """A client whose KV is its own: prefix caches have nothing of an earlier one with another salt."""
    name = f"{kind.replace(' ', '')}-{number}-{salt}z"
    if kind in LONG:
        path, more = COMPLETIONS, {"prompt": prompt_of(number), **LONG[kind]}
    else:
        path, more = OTHERS[kind]
    body = {"model": nodes.stack.model, "stream": True, **more}
    if path != MESSAGES:  # which has no such field
        body["cache_salt"] = f"{number}-{salt}"
    return Client(kind, name, path, body)


async def ask_one_server(nodes: Nodes, clients: list[Client]) -> dict[tuple[str, str], Any]:
    """Return what one server says to each of them, by kind and prompt."""
    found = {}
    async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as http:
        for each in clients:
            alone = Client(each.kind, each.name, each.path, each.body)
            await alone.read(http, nodes.plain.url)
            found[each.kind, key_of(each)] = alone.says
    return found


def key_of(client: Client) -> str:
    """What of its prompt is its own."""
    return json.dumps(client.body.get("prompt", "")[:1])


async def move(
    nodes: Nodes, clients: list[Client], source: Server, amid: Callable[[list[asyncio.Task[None]]], Awaitable[None]]
) -> None:
    """Begin streams on one decode node, have them move to the other, and read them to their ends; `amid` is run when the order has been given."""
    target = next(node for node in nodes.decode if node is not source)
    nodes.order("drain", target)
    async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, limits=httpx.Limits(max_connections=None)) as http:
        reading = [asyncio.create_task(each.read(http, nodes.proxy.url)) for each in clients]
        await asyncio.wait_for(
            asyncio.gather(*(each.has.wait() for each in clients if not each.is_whole)), ANSWER_TIMEOUT_S
        )
        await asyncio.to_thread(nodes.order, "drain", target, draining=False)
        before_s = max(each.longest_wait_s(0.0) for each in clients)
        ordered_s = time.monotonic()
        for each in clients:
            each.had = each.events
        await asyncio.to_thread(nodes.order, "evacuate", source)
        await amid(reading)
        await asyncio.gather(*reading, return_exceptions=True)
        waits = sorted(each.longest_wait_s(ordered_s) for each in clients if not each.is_whole)
        print(
            f"\n{len(clients)} answers: longest wait of a client {waits[-1]:.3f} s, median {waits[len(waits) // 2]:.3f} s; before {before_s:.3f} s"
        )
        for each, task in zip(clients, reading, strict=True):
            assert task.cancelled() or task.exception() is None, (each.name, task.exception())


async def until_all_have_left(nodes: Nodes, source: Server) -> None:
    """Wait until the node has no request, and say how long that took."""
    began_s = time.monotonic()
    while True:
        seen = await asyncio.to_thread(nodes.view, source)
        if not seen["requests"]:
            break
        assert time.monotonic() - began_s < ANSWER_TIMEOUT_S, seen
        await asyncio.sleep(0.05)
    print(f"\nall have left within {time.monotonic() - began_s:.2f} s")


async def move_and_look(nodes: Nodes, kinds: list[str]) -> None:
    """Have streams move once, and look at what either node computed for them."""
    clients = [client_of(nodes, at, kind, f"of{len(kinds)}") for at, kind in enumerate(kinds)]
    wanted = await ask_one_server(nodes, clients)
    source, target = nodes.decode
    before = moved(nodes)

    await move(nodes, clients, source, lambda _: until_all_have_left(nodes, source))

    for each in clients:
        assert each.says == wanted[each.kind, key_of(each)], each.name
    assert moved(nodes) - before == len(clients)
    assert nodes.view(source)["streams_left"] == {"moved": len(clients)}
    for each in clients:
        if each.kind not in LONG or each.kind == "two answers":
            continue
        has = 0 if each.is_whole else each.had
        assert nodes.computed(target, each.name) <= each.tokens - has + BLOCK_TOKENS, each.name
        assert nodes.computed(source, f"{each.name}-prefill") <= 2 * BLOCK_TOKENS, each.name
        assert nodes.computed(nodes.prefill, each.name) <= len(each.body["prompt"]), each.name
    assert leftovers(nodes.prefill, *nodes.decode) == []


def moved(nodes: Nodes) -> float:
    return nodes.proxy.metrics().get('baton_streams_moved_total{result="moved"}', 0.0)


def test_streams_move_with_their_kv(nodes: Nodes) -> None:
    """Greedy, seeded and guided ones, and an answer that is not streamed."""
    asyncio.run(move_and_look(nodes, QUICK))


@pytest.mark.exhaustive
def test_sixteen_streams_of_all_kinds_move(nodes: Nodes) -> None:
    every = [*LONG, *OTHERS]
    asyncio.run(move_and_look(nodes, [every[at % len(every)] for at in range(AT_ONCE)]))


@pytest.mark.exhaustive
def test_streams_move_while_clients_leave_and_nodes_die(nodes: Nodes) -> None:
    """To and fro, 16 at a time: those that stay have one server's answer, and all blocks come back."""
    draw = random.Random(5)
    kinds = [list(LONG)[at % len(LONG)] for at in range(AT_ONCE)]
    wanted = asyncio.run(ask_one_server(nodes, [client_of(nodes, at, kind, "all") for at, kind in enumerate(kinds)]))
    before, rounds = moved(nodes), -(-STREAMS // AT_ONCE)
    for at in range(rounds):
        fault, source = FAULTS[at % len(FAULTS)], nodes.decode[at % 2]
        clients = [client_of(nodes, number, kind, f"r{at}") for number, kind in enumerate(kinds)]
        print(f"\nround {at}: {fault}")
        left = asyncio.run(disturb(nodes, clients, source, fault, draw))
        for number, each in enumerate(clients):
            if number not in left:
                assert each.says == wanted[each.kind, key_of(each)], each.name
        for node in nodes.decode:
            node.wait_ready()
        until_ready(nodes)
        assert leftovers(nodes.prefill, *nodes.decode) == []
    print(f"\nmoved with KV: {moved(nodes) - before:.0f} of {rounds * AT_ONCE}")
    print({name: value for name, value in nodes.proxy.metrics().items() if name.startswith("baton_streams_")})


async def disturb(nodes: Nodes, clients: list[Client], source: Server, fault: str, draw: random.Random) -> list[int]:
    """Have streams move while something happens; return which clients have left."""
    target = next(node for node in nodes.decode if node is not source)
    left: list[int] = []

    async def strike(reading: list[asyncio.Task[None]]) -> None:
        if fault == "none":
            await until_all_have_left(nodes, source)
            return
        await asyncio.sleep(draw.random())  # somewhere among the moves
        if fault == "clients leave":
            left.extend(draw.sample(range(len(clients)), len(clients) // 3))
            for at in left:
                reading[at].cancel()
        else:
            struck = source if fault == "source is killed" else target
            await asyncio.to_thread(struck.kill)
            await asyncio.to_thread(struck.spawn)

    await move(nodes, clients, source, strike)
    return left


def until_ready(nodes: Nodes) -> None:
    """Wait until the proxy uses all nodes, and has no request on any."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        found = nodes.proxy.http.get(f"{nodes.proxy.url}/ready").json()["nodes"]
        if all(node["state"] == "ready" and not node["requests"] for node in found):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
