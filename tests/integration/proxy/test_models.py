"""Several models behind one proxy, each on nodes of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.cluster import Cluster, cluster, until
from tests.support.fake_answers import MODEL

OTHER = "other"


@asynccontextmanager
async def two_models(**settings: str) -> AsyncIterator[Cluster]:
    """Nodes 0 serve the one, nodes 1 the other model."""
    async with cluster(prefill=2, decode=2, **settings) as running:  # type: ignore[arg-type]
        for nodes in (running.prefill, running.decode):
            nodes[1].change(served_models=[OTHER])
        known = [MODEL, MODEL, OTHER, OTHER]
        await until(running.nodes, lambda nodes: sorted(node["models"][0] for node in nodes) == known)
        yield running


async def until_listed(running: Cluster, *models: str) -> None:
    """Wait until `/v1/models` has these and no others."""
    await until(
        lambda: running.http.get("/v1/models"),
        lambda got: {model["id"] for model in got.json().get("data", ())} == {*models},
    )


async def test_an_outage_of_one_models_decode_nodes_is_its_own() -> None:
    """Its requests are refused, and it is listed no more; the other model's are answered on its own nodes only."""
    async with two_models() as running:
        await running.decode[1].stop()
        await until_listed(running, MODEL)
        got = await asyncio.gather(*(running.complete(model=MODEL) for _ in range(6)))
        lost = [await running.complete(model=OTHER) for _ in range(3)]
        await running.decode[1].start()
        await until_listed(running, MODEL, OTHER)
        again = await running.complete(model=OTHER)

    assert {(each.status_code, each.headers["x-baton-path"]) for each in got} == {(200, "disaggregated")}
    assert {each.status_code for each in lost} <= {404, 503}
    assert again.status_code == 200
    for nodes in (running.prefill, running.decode):
        assert [{seen.body["model"] for seen in node.seen} for node in nodes] == [{MODEL}, {OTHER}]


async def test_version_and_load_are_those_of_the_nodes_in_vllms_form() -> None:
    """Tools that ask a vLLM server find what they look for; the first page says where the rest is."""
    silent = "http://127.0.0.1:9"  # has said nothing of itself
    async with cluster(decode=2, also={"decode": (silent,)}, ready=False) as running:
        for node, requests in zip(running.decode, (2, 3), strict=True):
            node.change(versions={"vllm": "0.32.0", "baton": "0.1.0"})
            node._load = (requests, 9)
        await until(lambda: running.http.get("/load"), lambda got: got.json() == {"server_load": 5})
        version = (await running.http.get("/version")).json()
        first = (await running.http.get("/")).json()["error"]["message"]

    assert "0.32.0" in version["version"].split(",")
    assert "/v1/models" in first
    assert "/dashboard" in first
