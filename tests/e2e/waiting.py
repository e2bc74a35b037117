"""Waiting for what other processes come to, with deadlines that a slow machine keeps too."""

import asyncio
import time
from collections.abc import Callable

from tests.e2e.stack import Server

GIVEN_BACK_WITHIN_S = 15.0  # 0.1 s on a quiet machine; by `orphan_timeout_s` blocks would be back after 30 s
SEEN_WITHIN_S = 60.0


async def until(condition: Callable[[], object]) -> None:
    """Poll, off the event loop, until something holds."""
    async with asyncio.timeout(SEEN_WITHIN_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # the condition lives in another process
            await asyncio.sleep(0.02)


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


def leftovers(*nodes: Server) -> list[str]:
    """Wait until the nodes are empty; return what their own checks find wrong then."""
    problems = []
    for node in nodes:
        settle(node, GIVEN_BACK_WITHIN_S)
        integrity = node.integrity()
        if not integrity["ok"]:
            problems.append(f"{node.name}: {integrity['findings']}")
    return problems
