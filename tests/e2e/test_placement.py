"""A prefill node makes whole answers while the decode node is slow, and is killed amid many: every client sees one stream, of one server's."""

import asyncio
from typing import Any

import httpx
import pytest

from baton.proxy.nodes.faded_line import MIN_SAMPLES
from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.test_cut_streams import comparable
from tests.e2e.waiting import settle
from tests.support import slow_step

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]

TOKENS = 40
EVENT_END = b"\n\n"
KILL_AFTER_TOKENS = 10  # on average, so that some streams have hardly begun and none has ended
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "ids": {"return_token_ids": True, "stream_options": {"include_usage": True}},
    "repetition": {"repetition_penalty": 1.1, "min_tokens": 30},
    "chat": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "seeded": {"temperature": 0.8, "seed": 7, "stream_options": {"include_usage": True}},
    "penalties": {"frequency_penalty": 0.3, "stop": ["no such text"]},
    "two": {"n": 2, "temperature": 0.8, "seed": 9},
}
COUNT = 2 * len(VARIANTS)
BY_COST: dict[str, str | None] = {
    "BATON_PROXY_PLACEMENT": "by_cost",
    "BATON_PROXY_PROBE_INTERVAL_S": "0.1",
    "BATON_PROXY_TARGET_FIRST_TOKEN_S": "100",
    "BATON_PROXY_TARGET_INTER_TOKEN_S": "0.03",
}
SLOW: dict[str, str | None] = {slow_step.STEP_S: "0.06"}
DECIDED = 'baton_decisions_total{path="local",reason="on_prefill"}'


def request_for(trio: Trio, number: int) -> tuple[str, dict[str, Any]]:
    """The path and the body of one stream."""
    variant = list(VARIANTS)[number % len(VARIANTS)]
    prompt = trio.prompts[2 + number // len(VARIANTS)]
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


async def read_all(trio: Trio, url: str, doomed: Server | None = None) -> list[dict[str, Any]]:
    """Read many streams at once; kill a node when they are well under way."""
    found = [bytearray() for _ in range(COUNT)]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        tasks = [asyncio.create_task(read(client, url, *request_for(trio, i), into)) for i, into in enumerate(found)]
        if doomed is not None:
            while sum(each.count(EVENT_END) for each in found) < COUNT * KILL_AFTER_TOKENS:
                assert not all(task.done() for task in tasks)
                await asyncio.sleep(0.005)
            print("killed at", sorted(each.count(EVENT_END) for each in found))
            doomed.kill()
        await asyncio.gather(*tasks)
    return [comparable(bytes(each)) for each in found]


def teach(proxy: Server, node: Server, model: str) -> None:
    """Let the proxy see what tokens take on a node it can predict that."""
    seen = f'baton_inter_token_prediction_ratio_count{{role="{node.info()["role"]}",url="{node.url}"}}'
    for number in range(20 * MIN_SAMPLES):
        node.ask("/v1/completions", {"model": model, "prompt": f"{number}", "max_tokens": 10, "ignore_eos": True})
        if proxy.metrics().get(seen, 0) > 0:
            return
    raise AssertionError("nothing was learned")


def test_streams_of_a_prefill_node_are_one_servers_and_survive_its_kill(stack: Stack, trio: Trio) -> None:
    reference = asyncio.run(read_all(trio, trio.plain.url))
    flags = (*FLOAT32, *slow_step.FLAGS)
    prefill = stack.node("prefill", *flags, name="prefill-that-decodes")
    slow = stack.node("decode", *flags, name="slow-decode", env=SLOW)
    proxy = stack.proxy([prefill], [slow], name="proxy-by-cost", env=BY_COST)
    for number in range(1, 2 * MIN_SAMPLES + 1):  # odd first times are dropped
        proxy.ask("/v1/completions", {"model": trio.model, "prompt": f"{number}" * 15 * number, "max_tokens": 2})
    teach(proxy, prefill, trio.model)
    teach(proxy, slow, trio.model)

    found = asyncio.run(read_all(trio, proxy.url, prefill))

    metrics = proxy.metrics()
    print({name: value for name, value in metrics.items() if name.startswith(("baton_streams", "baton_decisions"))})
    assert metrics[DECIDED] >= 1
    assert found == reference
    assert metrics['baton_streams_resumed_total{kind="disconnect"}'] >= 1
    assert metrics.get("baton_streams_broken_total", 0) == 0
    settle(slow, within_s=10)
