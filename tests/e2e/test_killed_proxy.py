"""A proxy that is killed tells nobody anything. Both nodes free everything, and another proxy goes on."""

import asyncio
import random
from collections import Counter
from typing import cast

import httpx
import pytest

from tests.e2e.client import body_for, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.e2e.valve import Valve
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle, until

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(300)]

ORPHAN_TIMEOUT_S = 4.0
REQUESTS = 24


def phases(prefill: Server, decode: Server) -> Counter[str]:
    """How many requests are where."""
    found: Counter[str] = Counter()
    for transfer in prefill.transfers()["transfers"]:
        state = transfer.get("scheduler", {}).get("state", "unknown")
        found[f"P {state}"] += 1
        found["P held for nobody"] += state == "held" and int(transfer.get("worker", {}).get("peer", "1"), 16) == 0
    for transfer in decode.transfers()["transfers"]:
        found[f"D {transfer.get('scheduler', {}).get('state', 'unknown')}"] += 1
    return found


def in_every_phase(prefill: Server, decode: Server) -> bool:
    """Some prompts wait, some are computed, some are kept for a D that will never ask; D waits for some and answers others."""
    found = phases(prefill, decode)
    wanted = ("P queued", "P running", "P held for nobody", "D reserved", "D settled")
    if all(found[name] for name in wanted):
        print(dict(found))
        return True
    return False


async def kill_amid_requests(trio: Trio, proxy: Server, prefill: Server) -> None:
    """Kill the proxy while its requests are in every phase."""
    rng = random.Random(3)
    prompts = [prompt for prompt in trio.prompts if len(prompt) > 1000]

    async def one(client: httpx.AsyncClient, number: int) -> None:
        prompt = [number + 2, *rng.choice(prompts)]  # no two share a prefix
        body = body_for(trio.model, prompt[:3500], stream=number % 2 == 0, max_tokens=400, logprobs=None)
        await client.post(f"{proxy.url}/v1/completions", json=body)

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        requests = [asyncio.create_task(one(client, number)) for number in range(REQUESTS)]
        await until(lambda: in_every_phase(prefill, trio.decode))
        proxy.kill()
        ended = await asyncio.gather(*requests, return_exceptions=True)
    assert any(isinstance(error, httpx.HTTPError) for error in ended)


def test_a_killed_proxy_costs_nothing_that_is_not_given_back(stack: Stack, trio: Trio) -> None:
    """Open legs break and are aborted; a prompt that P has answered and D never heard of has a time-out."""
    prefill = stack.node(
        "prefill",
        *FLOAT32,
        *("--max-num-batched-tokens", "256", "--orphan-timeout-s", str(ORPHAN_TIMEOUT_S)),
        name="orphaned-prefill",
    )
    prefill.wait_ready()
    with Valve(trio.decode.url) as valve:
        proxy = stack.proxy([prefill], [trio.decode, cast("Server", valve)], name="proxy-killed")
        proxy.wait_ready()
        valve.shut = True

        asyncio.run(kill_amid_requests(trio, proxy, prefill))

        took = {
            "decode": settle(trio.decode, GIVEN_BACK_WITHIN_S),
            "prefill": settle(prefill, ORPHAN_TIMEOUT_S + GIVEN_BACK_WITHIN_S),
        }
        print(f"given back after {took}, {valve.swallowed} decode legs were swallowed")
    reasons = Counter(failure["reason"] for failure in prefill.transfers()["worker"]["failures"])
    print(dict(reasons))
    assert reasons["no decode node asked for this prompt"]
    for server in (prefill, trio.decode):
        assert server.transfers()["transfers"] == []

    successor = stack.proxy([prefill], [trio.decode], name="proxy-successor")
    successor.wait_ready()
    found = answers(successor.url, trio.model, trio.prompts, at_once=4)
    assert [difference(*pair) for pair in zip(trio.reference, found, strict=True)] == [""] * len(trio.prompts)
    stack.stop(successor, prefill)
