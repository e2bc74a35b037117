"""A node that is killed amid its requests: every client gets the answer of one vLLM server, and sees one stream.

`KILLED_STREAMS` sets how many answers are asked for at once; two of eight are not streamed.
"""

import asyncio
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, PATH_HEADER
from tests.e2e.client import LOGPROB_TOLERANCE, Answer, complete, difference
from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.waiting import settle

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(600)]

STREAMS = int(os.environ.get("KILLED_STREAMS", "32"))
TOKENS = 60
KILL_AFTER_TOKENS = 15  # on average, so that some streams have hardly begun and none has ended
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "ids": {"return_token_ids": True, "stream_options": {"include_usage": True}},
    "logprobs": {"logprobs": 2, "repetition_penalty": 1.1, "min_tokens": 50},
    "chat": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "seeded": {"temperature": 0.8, "seed": 7, "stream_options": {"include_usage": True}},
    "penalties": {"frequency_penalty": 0.3, "stop": ["no such text"]},
    "whole": {"stream": False, "return_token_ids": True},
    "two": {"stream": False, "n": 2, "temperature": 0.8, "seed": 9},
}


@dataclass(slots=True)
class Read:
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    names: set[tuple[str, int]] = field(default_factory=set)
    roles: int = 0
    ends: list[str] = field(default_factory=list)
    usage: list[int] = field(default_factory=list)  # prompt and completion tokens, of the last event that tells
    chunks: int = 0
    path: str = ""

    def take(self, data: str) -> None:
        if data == "[DONE]":
            self.ends.append(data)
            return
        event = json.loads(data)
        assert "error" not in event, event
        self.names.add((event["id"], event["created"]))
        if usage := event.get("usage"):
            self.usage = [usage["prompt_tokens"], usage["completion_tokens"]]
            assert usage["total_tokens"] == sum(self.usage)
        for choice in event["choices"]:
            self.chunks += 1
            delta = choice.get("delta", {})
            self.roles += "role" in delta
            said = choice.get("text", delta.get("content")) or ""
            self.text += said if choice["index"] == 0 else f"|{said}"
            self.ids += choice.get("token_ids") or []
            logprobs = choice.get("logprobs") or {}
            self.logprobs += logprobs.get("token_logprobs", [])
            self.offsets += logprobs.get("text_offset", [])
            if choice["finish_reason"]:
                self.ends.append(choice["finish_reason"])

    def difference(self, other: "Read") -> str:
        for name in ("text", "ids", "offsets", "roles", "ends", "usage"):
            if getattr(self, name) != getattr(other, name):
                return f"{name}: {getattr(self, name)!r}, not {getattr(other, name)!r}"
        pairs = zip(self.logprobs, other.logprobs, strict=True)
        worst = max((abs(ours - theirs) for ours, theirs in pairs), default=0.0)
        return "" if worst <= LOGPROB_TOLERANCE and len(self.names) == 1 else f"logprobs by {worst}, {self.names}"


def request_for(trio: Trio, number: int) -> tuple[str, dict[str, Any]]:
    """The path and the body of one stream; the same for the same number modulo four times the variants."""
    variant = list(VARIANTS)[number % len(VARIANTS)]
    prompts = [prompt for prompt in trio.prompts if 4 < len(prompt) < 400]
    prompt = prompts[number // len(VARIANTS) % min(4, len(prompts))]
    body = {"model": trio.model, **GREEDY, **VARIANTS[variant]}
    if variant == "chat":
        return "/v1/chat/completions", {
            **body,
            "messages": [{"role": "user", "content": f"Tell me about {prompt[0]}."}],
        }
    return "/v1/completions", {**body, "prompt": prompt}


async def read(client: httpx.AsyncClient, url: str, path: str, body: dict[str, Any], into: Read) -> None:
    async with client.stream("POST", url + path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        into.path = response.headers.get(PATH_HEADER, "")
        if not body["stream"]:
            into.take((await response.aread()).decode())
            return
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                into.take(line.removeprefix("data: "))


async def read_all(trio: Trio, url: str, count: int, doomed: Server | None = None) -> list[Read]:
    """Read many answers at once; kill a node when the streams are well under way."""
    found = [Read() for _ in range(count)]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        asked = [request_for(trio, number) for number in range(count)]
        tasks = [asyncio.create_task(read(client, url, *each, into)) for each, into in zip(asked, found, strict=True)]
        if doomed is not None:
            streams = sum(body["stream"] for _, body in asked)
            while sum(each.chunks for each in found) < streams * KILL_AFTER_TOKENS:
                assert not all(task.done() for task in tasks)
                await asyncio.sleep(0.005)
            print("killed at", sorted(each.chunks for each in found))
            doomed.kill()
        await asyncio.gather(*tasks)
    return found


def test_every_stream_survives_the_kill_of_one_of_two_decode_nodes(stack: Stack, trio: Trio) -> None:
    """Greedy, seeded and penalised, completions and chats: tokens, text, logprobs, usage and ends are the reference's."""
    distinct = min(STREAMS, 4 * len(VARIANTS))
    reference = asyncio.run(read_all(trio, trio.plain.url, distinct))
    doomed = stack.node("decode", *FLOAT32, name="doomed-decode")
    proxy = stack.proxy([trio.prefill], [doomed, trio.decode], name="proxy-two-decode")

    found = asyncio.run(read_all(trio, proxy.url, STREAMS, doomed))

    metrics = proxy.metrics()
    resumed = {name: value for name, value in metrics.items() if name.startswith("baton_streams_")}
    print(resumed, Counter(each.path for each in found))
    wrong = {number: each.difference(reference[number % distinct]) for number, each in enumerate(found)}
    assert {number: text for number, text in wrong.items() if text} == {}
    assert resumed.get('baton_streams_resumed_total{kind="disconnect"}', 0) >= STREAMS / 4
    assert metrics.get("baton_streams_broken_total", 0) == 0
    settle(trio.decode, within_s=10)
    settle(trio.prefill, within_s=10)


async def ask_during_kill(trio: Trio, url: str, prompts: list[list[int]], doomed: Server) -> list[Answer]:
    """Ask for long prompts; kill a prefill node that computes some of them."""
    async with httpx.AsyncClient(timeout=300) as client:
        asked = [asyncio.create_task(complete(client, url, trio.model, prompt)) for prompt in prompts]
        while not (await asyncio.to_thread(doomed.transfers))["transfers"]:
            assert not all(task.done() for task in asked)
            await asyncio.sleep(0.005)
        doomed.kill()
        return await asyncio.gather(*asked)


def test_every_request_survives_the_kill_of_one_of_two_prefill_nodes(stack: Stack, trio: Trio) -> None:
    """What it was computing is computed on the other one; nothing need be computed on the decode node."""
    doomed = stack.node("prefill", *FLOAT32, "--max-num-batched-tokens", "256", name="doomed-prefill-of-two")
    proxy = stack.proxy([doomed, trio.prefill], [trio.decode], name="proxy-two-prefill")
    chosen = sorted(range(len(trio.prompts)), key=lambda number: len(trio.prompts[number]))[-6:]

    found = asyncio.run(ask_during_kill(trio, proxy.url, [trio.prompts[number] for number in chosen], doomed))

    again = proxy.metrics().get('baton_retries_total{leg="prefill",next="another_node"}', 0)
    paths = Counter(each.path for each in found)
    print(f"{again:g} prompts were computed again, {dict(paths)}")
    assert [difference(trio.reference[number], each) for number, each in zip(chosen, found, strict=True)] == [""] * 6
    assert again >= 1
    assert paths[DISAGGREGATED] >= 4
    settle(trio.decode, within_s=10)
    settle(trio.prefill, within_s=10)
