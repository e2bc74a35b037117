"""Two proxies in front of the same nodes: each sees in what a node says what the other one has there."""

import asyncio

from tests.support.cluster import Cluster, cluster, until_true

NODES = "/admin/nodes"


async def others_on(running: Cluster) -> dict[str, int]:
    """How many requests the nodes have from others, by URL."""
    nodes = (await running.admin("GET", NODES)).json()["nodes"]
    return {node["url"]: node["other_requests"] for node in nodes}


async def test_a_proxy_sees_what_others_have_and_goes_elsewhere() -> None:
    """The other proxy's requests are all on one node: this one's go to the other node, though it has nothing itself."""
    async with cluster(prefill=0, decode=2) as first:
        busy, idle = first.decode
        urls = tuple(node.url for node in first.decode)
        async with cluster(prefill=0, decode=0, also={"decode": urls}, fabric=first.fabric) as second:
            await first.admin("POST", f"{NODES}/drain", json={"url": idle.url})
            busy.may_answer.clear()
            open_ones = [asyncio.create_task(first.complete(stream=True)) for _ in range(6)]
            await until_true(lambda: _sees(second, busy.url, 6))
            own = (await others_on(first))[busy.url]
            got = [await second.complete() for _ in range(5)]
            busy.may_answer.set()
            streamed = await asyncio.gather(*open_ones)
            await until_true(lambda: _sees(second, busy.url, 0))

    assert own == 0  # what is its own, is not others'
    assert {each.status_code for each in (*got, *streamed)} == {200}
    assert (len(busy.seen), len(idle.seen)) == (6, 5)


async def _sees(running: Cluster, url: str, others: int) -> bool:
    return (await others_on(running))[url] == others
