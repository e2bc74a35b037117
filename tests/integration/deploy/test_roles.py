"""The controller of roles before two proxies and fake nodes: a load that shifts brings orders, to both proxies."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from baton.contracts.configuration.schema import RolesConfig
from baton.deploy.roles.command import Controller
from tests.integration.proxy.test_roles import both_ways, roles
from tests.support.cluster import ADMIN_TOKEN, Cluster, cluster, until_true

PROMPT_S = 0.1
CLIENTS = 3  # each asks as fast as a node answers: three times what one can do, on a slow machine too
NUMBERS = itertools.count()
STEP_S = 0.0005  # of one stream, and as much more for each further one: within the target 2,000 tokens a second
FEW, MANY = 8, 1000  # tokens that a node counts from one probe to the next, of which there are 20 in a second


def reports_of(tokens: int) -> Callable[[], dict[str, Any]]:
    """Return what tells, at each probe, of so many tokens more."""

    def reports() -> Iterator[dict[str, Any]]:
        count, sum_s = 0, 0.0
        while True:
            for running in (1, 8):
                count, sum_s = count + tokens, sum_s + tokens * STEP_S * running
                yield {"running": running, "inter_token_count": count, "inter_token_sum_s": sum_s}

    return reports().__next__


async def looked(controller: Controller, running: Cluster, prefill: int) -> bool:
    await asyncio.to_thread(controller.check_load)
    return await has(running, prefill)


async def has(running: Cluster, prefill: int) -> bool:
    """Whether a proxy has so many prefill nodes, of four."""
    found = list((await roles(running)).values())
    return (found.count("prefill"), len(found)) == (prefill, 4)


async def ask_until(changed: asyncio.Event, running: Cluster) -> set[int]:
    """Ask one prompt after the other, and return the statuses of the answers."""
    statuses = set()
    while not changed.is_set():
        statuses.add((await running.complete(prompt=f"{next(NUMBERS)} " * 200)).status_code)
    return statuses


async def test_a_shift_of_load_changes_roles_at_all_proxies() -> None:
    """To the prefill role while prompts queue, and back when there are more tokens than prompts."""
    async with both_ways(prefill=1, decode=3) as first:
        urls = {"prefill": (first.prefill[0].url,), "decode": tuple(node.url for node in first.decode)}
        async with cluster(prefill=0, decode=0, also=urls, fabric=first.fabric) as second:
            for node in first.decode:
                node.also_tells = reports_of(FEW)
            rules = RolesConfig(looks=2, cooldown_s=0.2)
            headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
            with httpx.Client(headers=headers) as client:
                controller = Controller(client, (first.url, second.url), rules)
                await asyncio.to_thread(controller.check_load)
                calm = await roles(first)
                first.prefill[0].first_token_delay_s = PROMPT_S
                changed = asyncio.Event()
                asking = [asyncio.create_task(ask_until(changed, first)) for _ in range(CLIENTS)]
                await until_true(lambda: looked(controller, first, 2))
                await until_true(lambda: has(second, 2))
                changed.set()
                statuses = set.union(*await asyncio.gather(*asking))
                for node in first.decode:
                    node.also_tells = reports_of(MANY)
                await until_true(lambda: looked(controller, first, 1))

    assert statuses == {200}
    assert sorted(calm.values()) == ["decode", "decode", "decode", "prefill"]
