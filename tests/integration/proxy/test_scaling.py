"""Nodes come and go under load, through the admin API, and no request fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from baton.contracts.kv_transfer import Role
from tests.support.cluster import Cluster, cluster, until, until_true
from tests.support.fake_vllm import FakeVllm

NODES = "/admin/nodes"
CLIENTS = 8


@asynccontextmanager
async def load_on(running: Cluster) -> AsyncIterator[list[httpx.Response]]:
    """Clients that ask one streaming request after the other; the answers so far, and all when the block has ended."""
    stop = asyncio.Event()
    found: list[httpx.Response] = []

    async def client() -> None:
        while not stop.is_set():
            found.append(await running.complete(stream=True))

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    try:
        yield found
    finally:
        stop.set()
        await asyncio.gather(*clients)


async def more_of(found: list[httpx.Response], requests: int = 3 * CLIENTS) -> None:
    """Wait until so many more were answered."""
    wanted = len(found) + requests
    await until_true(lambda: len(found) >= wanted, timeout_s=30.0)


async def until_idle(running: Cluster, node: FakeVllm) -> None:
    """Wait until nothing of this proxy is on a node any more."""

    def is_idle(got: httpx.Response) -> bool:
        everywhere = [*got.json()["nodes"], *got.json()["leaving"]]
        return not any(each["requests"] for each in everywhere if each["url"] == node.url)

    await until(lambda: running.admin("GET", "/admin/state"), is_idle, timeout_s=30.0)


async def until_used(node: FakeVllm) -> None:
    """Wait until a node gets work."""
    seen = len(node.seen)
    await until_true(lambda: len(node.seen) > seen, timeout_s=30.0)


async def test_scaling_up_and_down_under_load_fails_no_request() -> None:
    """A node of each role is added before it listens, one drained and stopped, one removed and stopped: every answer is whole."""
    async with (
        cluster(prefill=2, decode=2, transfer_timeout_s=60.0, request_timeout_s=60.0) as running,
        AsyncExitStack() as stack,
    ):
        for node in (*running.prefill, *running.decode):
            node.token_delay_s = 0.01
        roles: tuple[Role, ...] = ("prefill", "decode")
        added = [FakeVllm(role, running.fabric) for role in roles]
        for node in added:
            stack.push_async_callback(node.stop)  # what listens on after a failure fails a later test
        async with load_on(running) as found:
            await more_of(found)
            for node in added:
                node.token_delay_s = 0.01
                await node.start()
                await node.stop()  # its port is known now
                order = {"url": f"{node.url}/", "role": node.role}
                said = [await running.admin("POST", NODES, json=order) for _ in range(2)]
                assert [(each.status_code, each.json()["url"]) for each in said] == [(201, node.url), (200, node.url)]
                await more_of(found)
                await node.start()
                await until_used(node)
            for drained in (running.prefill[0], running.decode[0]):
                await running.admin("POST", f"{NODES}/drain", json={"url": drained.url})
                await until_idle(running, drained)
                await drained.stop()
                await more_of(found)
            for removed in (running.prefill[1], running.decode[1]):
                await running.admin("DELETE", NODES, params={"url": removed.url})
                await until_idle(running, removed)
                await removed.stop()
                await more_of(found)
        members = {node["url"] for node in (await running.admin("GET", NODES)).json()["nodes"]}
        metrics = (await running.http.get("/metrics")).text

    assert members == {node.url for node in (running.prefill[0], running.decode[0], *added)}
    assert {each.status_code for each in found} == {200}
    assert all(each.content.endswith(b"data: [DONE]\n\n") for each in found)
    assert not [line for line in metrics.splitlines() if line.startswith("baton_leg_failures_total{")]
