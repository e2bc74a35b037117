"""A decode node that is killed amid many requests: every client gets the answer of one vLLM server, and sees one stream.

A prefill node: tests/chaos, tests/integration/proxy/test_failover.py, tests/integration/kv_connector/test_workers.py. One
stream of every kind, whole answers and log probabilities too: test_every_stream.py, test_cut_streams.py.
`KILLED_STREAMS` sets how many are asked for at once.
"""

import asyncio
import os
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.test_cut_streams import comparable
from tests.e2e.waiting import settle

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(600)]

STREAMS = int(os.environ.get("KILLED_STREAMS", "32"))
TOKENS = 60
EVENT_END = b"\n\n"
KILL_AFTER_TOKENS = 15  # on average, so that some streams have hardly begun and none has ended
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "ids": {"return_token_ids": True, "stream_options": {"include_usage": True}},
    "repetition": {"repetition_penalty": 1.1, "min_tokens": 50},
    "chat": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "seeded": {"temperature": 0.8, "seed": 7, "stream_options": {"include_usage": True}},
    "penalties": {"frequency_penalty": 0.3, "stop": ["no such text"]},
    "two": {"n": 2, "temperature": 0.8, "seed": 9},
}


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


async def read(client: httpx.AsyncClient, url: str, path: str, body: dict[str, Any], into: bytearray) -> None:
    async with client.stream("POST", url + path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for piece in response.aiter_raw():
            into += piece


async def read_all(trio: Trio, url: str, count: int, doomed: Server | None = None) -> list[dict[str, Any]]:
    """Read many streams at once; kill a node when they are well under way."""
    found = [bytearray() for _ in range(count)]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        tasks = [asyncio.create_task(read(client, url, *request_for(trio, i), into)) for i, into in enumerate(found)]
        if doomed is not None:
            while sum(each.count(EVENT_END) for each in found) < count * KILL_AFTER_TOKENS:
                assert not all(task.done() for task in tasks)
                await asyncio.sleep(0.005)
            print("killed at", sorted(each.count(EVENT_END) for each in found))
            doomed.kill()
        await asyncio.gather(*tasks)
    return [comparable(bytes(each)) for each in found]


def test_every_stream_survives_the_kill_of_one_of_two_decode_nodes(stack: Stack, trio: Trio) -> None:
    """Greedy, seeded and penalised, completions and chats: tokens, text, usage and ends are the reference's."""
    distinct = min(STREAMS, 4 * len(VARIANTS))
    reference = asyncio.run(read_all(trio, trio.plain.url, distinct))
    doomed = stack.node("decode", *FLOAT32, name="doomed-decode")
    proxy = stack.proxy([trio.prefill], [doomed, trio.decode], name="proxy-two-decode")

    found = asyncio.run(read_all(trio, proxy.url, STREAMS, doomed))

    metrics = proxy.metrics()
    print({name: value for name, value in metrics.items() if name.startswith("baton_streams_")})
    for number, each in enumerate(found):
        assert each == reference[number % distinct], request_for(trio, number)
    assert metrics.get('baton_streams_resumed_total{kind="disconnect"}', 0) >= STREAMS / 4
    assert metrics.get("baton_streams_broken_total", 0) == 0
    settle(trio.decode, within_s=10)
    settle(trio.prefill, within_s=10)
