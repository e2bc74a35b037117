"""Streams leave a decode node that is alive, with their KV: one server's tokens, and the other node computes what is new.

While clients leave and nodes are killed: test_chaos.py. Streams of every kind that go on elsewhere: test_cut_streams.py.
"""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.proxy.request.endpoints import COMPLETIONS
from tests.e2e.both_ways import BLOCK_TOKENS, Nodes, admin, prompt_of
from tests.e2e.stack import ANSWER_TIMEOUT_S, Server
from tests.e2e.test_cut_streams import comparable
from tests.e2e.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ANSWER_TOKENS = 110
HAS_EVENTS = 30  # of each stream, when it is to move
WORDS = {"max_tokens": ANSWER_TOKENS, "ignore_eos": True, "return_token_ids": True, "stream": True}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {**WORDS, "temperature": 0, "logprobs": 2},
    "seeded": {**WORDS, "temperature": 1.0, "seed": 11},
    "whole": {**WORDS, "temperature": 0, "stream": False},
    "guided": {**WORDS, "temperature": 0.8, "seed": 9, "structured_outputs": {"regex": "(ab|cd| ){400}"}},
    "two answers": {**WORDS, "temperature": 1.0, "seed": 4, "n": 2},
}


@dataclass
class Client:
    """One answer, as it came."""

    kind: str
    body: dict[str, Any]
    came: bytearray = field(default_factory=bytearray)
    has: asyncio.Event = field(default_factory=asyncio.Event)  # so many events that it may move
    had: int = 0  # events, when the order was given

    @property
    def name(self) -> str:
        return f"{self.kind.replace(' ', '')}-moves"

    async def read(self, http: httpx.AsyncClient, server: Server) -> None:
        url, headers = server.url + COMPLETIONS, {"x-request-id": self.name}
        async with http.stream("POST", url, json=self.body, headers=headers) as got:
            assert got.status_code == 200, await got.aread()
            async for piece in got.aiter_raw():
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


def clients(model: str) -> list[Client]:
    """One of each kind, with a prompt of its own."""
    bodies = ({"model": model, "prompt": prompt_of(10 + at), **more} for at, more in enumerate(KINDS.values()))
    return [Client(kind, body) for kind, body in zip(KINDS, bodies, strict=True)]


def order(proxy: Server, what: str, node: Server, **more: Any) -> None:
    admin(proxy, "POST", f"/admin/nodes/{what}", json={"url": node.url, **more})


def view(proxy: Server, node: Server) -> Any:
    return next(each for each in admin(proxy, "GET", "/admin/nodes")["nodes"] if each["url"] == node.url)


async def move(nodes: Nodes, proxy: Server, moving: list[Client]) -> None:
    """Begin answers on one decode node, have them move to the other, and read them to their ends."""
    order(proxy, "drain", nodes.second)
    async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as http:
        reading = [asyncio.create_task(each.read(http, proxy)) for each in moving]
        begun = asyncio.gather(*(each.has.wait() for each in moving if not each.is_whole))
        await asyncio.wait_for(begun, ANSWER_TIMEOUT_S)
        await asyncio.to_thread(order, proxy, "drain", nodes.second, draining=False)
        for each in moving:
            each.had = each.events
        await asyncio.to_thread(order, proxy, "evacuate", nodes.first)
        await until(lambda: not view(proxy, nodes.first)["requests"])
        await asyncio.gather(*reading)


async def test_streams_move_with_their_kv(nodes: Nodes, tmp_path: Path) -> None:
    """Greedy, seeded and guided ones, two answers to a prompt, and an answer that is not streamed."""
    alone, moving = clients(nodes.stack.model), clients(nodes.stack.model)
    async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as http:
        for each in alone:
            await each.read(http, nodes.plain)
    proxy = nodes.proxy(tmp_path)

    await move(nodes, proxy, moving)

    assert [each.says for each in moving] == [each.says for each in alone]
    assert proxy.metrics()['baton_streams_moved_total{result="moved"}'] == len(moving)
    assert view(proxy, nodes.first)["streams_left"] == {"moved": len(moving)}
    for each in moving:
        if each.kind == "two answers":
            continue
        has = 0 if each.is_whole else each.had
        assert nodes.computed(nodes.second, each.name) <= ANSWER_TOKENS - has + BLOCK_TOKENS, each.name
        assert nodes.computed(nodes.first, f"{each.name}-prefill") <= 2 * BLOCK_TOKENS, each.name
        assert nodes.computed(nodes.prefill, each.name) <= len(each.body["prompt"]), each.name
