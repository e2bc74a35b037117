"""A node that sends and receives serves in the other role when an operator says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.integration.proxy.test_failures import assert_nothing_left
from tests.integration.proxy.test_moving import NODES, begin
from tests.integration.proxy.test_resume import same_id, whole
from tests.support.cluster import Cluster, cluster, until
from tests.support.fake_vllm import FakeVllm


@asynccontextmanager
async def both_ways(**more: Any) -> AsyncIterator[Cluster]:
    settings = {"prefill": 2, "decode": 2, "prefill_policy": "round_robin", "decode_policy": "round_robin", **more}
    described = {"both_ways": True}
    async with cluster(first_tokens="3-alike", both_ways=True, described=described, **settings) as running:
        yield running


async def change(running: Cluster, node: FakeVllm, role: str) -> httpx.Response:
    return await running.admin("POST", f"{NODES}/role", json={"url": node.url, "role": role})


async def roles(running: Cluster) -> dict[str, str]:
    """Return each member's role; of those that are ready."""
    nodes = (await running.admin("GET", NODES)).json()["nodes"]
    return {node["url"]: node["role"] for node in nodes if node["state"] == "ready"}


async def is_ready(running: Cluster, node: FakeVllm, role: str) -> None:
    await until(lambda: roles(running), lambda found: found.get(node.url) == role)


async def test_a_node_serves_in_the_other_role_and_back() -> None:
    """Legs of that role come to it, and no others; then those of its own again."""
    async with both_ways() as running:
        node = running.decode[1]
        for now in ("prefill", "decode"):
            changed = await change(running, node, now)
            await is_ready(running, node, now)
            node.seen.clear()
            answers = [await running.complete(stream=True, max_tokens=3) for _ in range(4)]
            await assert_nothing_left(running)

            assert [(each["url"], each["role"]) for each in changed.json()["nodes"]] == [(node.url, now)]
            assert {answer.headers["x-baton-path"] for answer in answers} == {"disaggregated"}
            assert {seen.params.role for seen in node.seen if seen.params} == {now}
            assert len(await roles(running)) == 4


async def test_streams_of_a_decode_node_that_becomes_a_prefill_node_move() -> None:
    async with both_ways() as running:
        node, other = running.decode
        await running.admin("POST", f"{NODES}/drain", json={"url": other.url})
        (asked,) = await begin(running, "completion")
        await change(running, node, "prefill")
        got = await asyncio.wait_for(asked, 20)
        await is_ready(running, node, "prefill")

    assert same_id(got) == same_id(whole("completion"))


async def test_a_change_that_cannot_be_made() -> None:
    async with both_ways(decode=1) as running, cluster() as one_way:
        got = [await change(each, each.decode[0], "prefill") for each in (running, one_way)]

    assert [each.status_code for each in got] == [409, 409]
    assert "the only decode node" in got[0].json()["error"]["message"]
    assert "both_ways is off" in got[1].json()["error"]["message"]


async def test_a_change_is_refused_soon_after_another() -> None:
    """If the order says so: two controllers do not undo each other's changes. An operator's order is carried out at once."""
    async with both_ways(decode=3) as running:
        order = {"role": "prefill", "unchanged_for_s": 60.0}
        got = [
            await running.admin("POST", f"{NODES}/role", json={**order, "url": node.url}) for node in running.decode[:2]
        ]
        again = await running.admin("POST", f"{NODES}/role", json={**order, "url": running.decode[0].url})
        by_hand = await change(running, running.decode[1], "prefill")
        state = (await running.admin("GET", "/admin/state")).json()

    assert [answer.status_code for answer in (*got, again, by_hand)] == [200, 409, 200, 200]
    assert "a role was changed" in got[1].json()["error"]["message"]
    assert 0 <= state["roles_unchanged_s"] < 60
