"""Clients that leave at any moment cost nothing that is not given back."""

import asyncio
import random
import time
from contextlib import suppress

import httpx
import pytest

from tests.e2e.client import body_for, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.stack import Server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CLIENTS = 50
LONGEST_STAY_S = 0.8
GIVEN_BACK_WITHIN_S = 2.0
ONE_STEP_S = 1.0  # of a loaded engine on two cores


def missing_blocks(server: Server) -> int:
    """Blocks that are not free, by the ledger and by vLLM's own gauge; the larger."""
    scheduler = server.transfers()["scheduler"]
    by_ledger = int(scheduler["num_blocks"] - scheduler["free_blocks"])
    by_gauge = round(server.metrics()["vllm:kv_cache_usage_perc"] * int(scheduler["num_blocks"]))
    return max(by_ledger, by_gauge)


def settle(server: Server, within_s: float) -> float:
    """Wait until every block is free; returns how long it took, or fails with what is left."""
    begun = time.monotonic()
    while missing_blocks(server):
        assert time.monotonic() - begun < within_s, f"{server.name} keeps blocks: {server.transfers()}"
        time.sleep(0.02)
    return time.monotonic() - begun


async def leave_early(trio: Trio, seed: int) -> None:
    """Start `CLIENTS` requests, and close each connection after a random while."""
    rng = random.Random(seed)
    prompts = [prompt for prompt in trio.prompts if len(prompt) > 1]

    async def one() -> None:
        prompt = rng.choice(prompts)[: rng.randint(2, 3500)]
        body = body_for(trio.model, prompt, stream=rng.random() < 0.5, max_tokens=rng.randint(1, 48))
        stay_s = rng.uniform(0, LONGEST_STAY_S)
        await asyncio.sleep(rng.uniform(0, 1.0))
        async with httpx.AsyncClient(timeout=60) as client:
            with suppress(TimeoutError, httpx.HTTPError):
                async with asyncio.timeout(stay_s):
                    await client.post(f"{trio.proxy.url}/v1/completions", json=body)

    await asyncio.gather(*(one() for _ in range(CLIENTS)))


def test_blocks_come_back_after_clients_left(trio: Trio) -> None:
    """I5: both nodes' free-block counts are back within two seconds of the last disconnect, plus one step."""
    asyncio.run(leave_early(trio, seed=7))

    took = {server.name: settle(server, GIVEN_BACK_WITHIN_S + ONE_STEP_S) for server in (trio.prefill, trio.decode)}
    print(f"given back after {took}")
    found = answers(trio.proxy.url, trio.model, trio.prompts, at_once=4)
    assert [difference(*pair) for pair in zip(trio.reference, found, strict=True)] == [""] * len(trio.prompts)


def test_nothing_is_left_open_after_ordinary_requests(trio: Trio) -> None:
    """Neither node counts a transfer or a reservation as open once its requests have been answered."""
    answers(trio.proxy.url, trio.model, trio.prompts[:5])
    for server in (trio.prefill, trio.decode):
        settle(server, GIVEN_BACK_WITHIN_S)
        assert server.transfers()["transfers"] == []
