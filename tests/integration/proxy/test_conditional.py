"""Prompts that decode nodes compute: by choice, and because no prefill node can; on real sockets."""

import asyncio

from tests.integration.proxy.test_failures import assert_error
from tests.support.cluster import Cluster, cluster, until_true


async def decisions(running: Cluster, path: str, reason: str) -> float:
    """How often a plan was made for that reason."""
    return await running.metric(f'baton_decisions_total{{path="{path}",reason="{reason}"}}')


async def own_bytes(running: Cluster) -> list[int]:
    """What each decode node has to compute itself, as the proxy counts it."""
    nodes = (await running.admin("GET", "/admin/state")).json()["nodes"]
    return [node["own_prompt_bytes"] for node in nodes if node["role"] == "decode"]


async def test_a_short_prompt_is_computed_where_it_is_decoded() -> None:
    """The head says so; a long one is not, nor one of more than half the threshold where half of the cap is in flight."""
    async with cluster(local_below_bytes=200, max_own_prompt_bytes=300) as running:
        long = await running.complete(prompt="x" * 300)
        running.hold()
        first = asyncio.create_task(running.complete(prompt="x" * 180))
        await until_true(lambda: len(running.decode[0].seen) == 2)
        counted = await own_bytes(running)
        second = asyncio.create_task(running.complete(prompt="x" * 150))
        await until_true(lambda: len(running.prefill[0].seen) == 2)
        running.release()
        got = [long, await first, await second]
        decided = [
            await decisions(running, path, reason)
            for path, reason in (("local", "short"), ("disaggregated", ""), ("disaggregated", "decode_busy"))
        ]
        left = await own_bytes(running)

    assert [each.headers["x-baton-path"] for each in got] == ["disaggregated", "local", "disaggregated"]
    assert got[1].headers["x-baton-reason"] == "little of the prompt is new to the decode node"
    assert decided == [1, 1, 1]
    assert (counted, left) == ([182], [0])  # a JSON string has two quotes


async def test_without_prefill_nodes_no_decode_node_is_buried() -> None:
    """Each takes what it may; then it is 503 with a time to come again, until one has room."""
    async with cluster(prefill=0, decode=2, max_own_prompt_bytes=1000) as running:
        running.hold()
        asked = [asyncio.create_task(running.complete(prompt="x" * 600)) for _ in range(2)]
        await until_true(lambda: all(node.seen for node in running.decode))
        refused = await running.complete(prompt="x" * 600)
        small = asyncio.create_task(running.complete(prompt="x" * 100))
        await until_true(lambda: sum(len(node.seen) for node in running.decode) == 3)
        counted = await running.metric('baton_refusals_total{reason="decode_cap"}')
        running.release()
        got = [await each for each in (*asked, small)]
        again = await running.complete(prompt="x" * 600)

    assert_error(refused, 503)
    assert refused.headers["retry-after"] == "1"
    assert counted == 1
    assert [each.status_code for each in (*got, again)] == [200] * 4
    assert again.headers["x-baton-reason"] == "no prefill node is configured"


async def test_who_waits_in_vain_for_room_is_told_before_its_deadline() -> None:
    """503 with a time to come again, and not 504."""
    async with cluster(max_own_prompt_bytes=1000, request_timeout_s=1.5) as running:
        running.hold()
        first = asyncio.create_task(running.complete(prompt="x" * 600, prompt_logprobs=1))
        await until_true(lambda: running.decode[0].seen)
        running.prefill[0].fault = "status"
        got = await running.complete(prompt="y" * 600)
        running.release()
        await first

    assert_error(got, 503)
    assert got.headers["retry-after"] == "1"
