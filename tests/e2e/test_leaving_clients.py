"""Clients that leave at any moment cost nothing that is not given back."""

import asyncio
import random
from contextlib import suppress

import httpx
import pytest

from tests.e2e.client import body_for, difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.waiting import GIVEN_BACK_WITHIN_S, settle

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CLIENTS = 50
LONGEST_STAY_S = 0.8


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
    """I5: both nodes' free-block counts are back soon after the last disconnect."""
    asyncio.run(leave_early(trio, seed=7))

    took = {server.name: settle(server, GIVEN_BACK_WITHIN_S) for server in (trio.prefill, trio.decode)}
    print(f"given back after {took}")
    found = answers(trio.proxy.url, trio.model, trio.prompts, at_once=4)
    assert [difference(*pair) for pair in zip(trio.reference, found, strict=True)] == [""] * len(trio.prompts)


def test_nothing_is_left_open_after_ordinary_requests(trio: Trio) -> None:
    """Neither node counts a transfer or a reservation as open once its requests have been answered."""
    answers(trio.proxy.url, trio.model, trio.prompts[:5])
    for server in (trio.prefill, trio.decode):
        settle(server, GIVEN_BACK_WITHIN_S)
        assert server.transfers()["transfers"] == []
