"""The controller of roles before two proxies and fake nodes: a load that shifts brings orders, to both proxies."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from baton.contracts.configuration.schema import RolesConfig
from baton.deploy.roles.command import Controller
from tests.integration.proxy.test_roles import both_ways, roles
from tests.support.cluster import ADMIN_TOKEN, Cluster, cluster, until_true

PROMPT_S = 0.1
PROMPTS = 50  # that come at once, again and again: more than one node can do
STEP_S = 0.02  # of one stream, and as much more for each further one


def many_tokens() -> Callable[[], dict[str, Any]]:
    """What a node tells at each probe that makes more tokens than its target allows."""

    def reports() -> Iterator[dict[str, Any]]:
        count, sum_s = 0, 0.0
        while True:
            for running in (1, 8):
                count, sum_s = count + 100, sum_s + 100 * STEP_S * running
                yield {"running": running, "inter_token_count": count, "inter_token_sum_s": sum_s}

    return reports().__next__


async def looked(controller: Controller, running: Cluster, prefill: int) -> bool:
    await asyncio.to_thread(controller.look)
    return sorted((await roles(running)).values()).count("prefill") == prefill


async def ask_until(changed: asyncio.Event, running: Cluster) -> set[int]:
    """Ask prompts, and return the statuses of the answers."""
    statuses: set[int] = set()
    while not changed.is_set():
        asked = [running.complete(prompt=f"{number} " * 200) for number in range(PROMPTS)]
        statuses |= {answer.status_code for answer in await asyncio.gather(*asked)}
    return statuses


async def test_a_shift_of_load_changes_roles_at_all_proxies() -> None:
    """To the prefill role while prompts queue, and back when there are more tokens than prompts."""
    async with both_ways(prefill=1, decode=3) as first:
        urls = {"prefill": (first.prefill[0].url,), "decode": tuple(node.url for node in first.decode)}
        async with cluster(prefill=0, decode=0, also=urls, fabric=first.fabric) as second:
            rules = RolesConfig(looks=2, cooldown_s=0.2)
            headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
            with httpx.Client(headers=headers) as client:
                controller = Controller(client, (first.url, second.url), rules)
                await asyncio.to_thread(controller.look)
                calm = await roles(first)
                first.prefill[0].first_token_delay_s = PROMPT_S
                changed = asyncio.Event()
                asking = asyncio.create_task(ask_until(changed, first))
                await until_true(lambda: looked(controller, first, 2))
                both = await roles(second)
                changed.set()
                statuses = await asking
                for node in first.decode:
                    node.also_tells = many_tokens()
                await until_true(lambda: looked(controller, first, 1))

    assert statuses == {200}
    assert sorted(calm.values()) == ["decode", "decode", "decode", "prefill"]
    assert sorted(both.values()) == ["decode", "decode", "prefill", "prefill"]
