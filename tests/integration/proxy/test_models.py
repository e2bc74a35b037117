"""Several models behind one proxy, each on nodes of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.cluster import Cluster, cluster, until_true
from tests.support.fake_answers import MODEL

OTHER = "other"


@asynccontextmanager
async def two_models(**settings: str) -> AsyncIterator[Cluster]:
    """Nodes 0 serve the one, nodes 1 the other model."""
    async with cluster(prefill=2, decode=2, **settings) as running:  # type: ignore[arg-type]
        for nodes in (running.prefill, running.decode):
            nodes[1].change(served_models=[OTHER])

        async def all_known() -> bool:
            nodes = (await running.http.get("/ready")).json()["nodes"]
            return sorted(node["models"][0] for node in nodes) == [MODEL, MODEL, OTHER, OTHER]

        await until_true(all_known)
        yield running


async def until_listed(running: Cluster, *models: str) -> None:
    """Wait until `/v1/models` has these and no others."""

    async def are_listed() -> bool:
        return {model["id"] for model in (await running.http.get("/v1/models")).json().get("data", ())} == {*models}

    await until_true(are_listed)


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


async def test_faults_of_one_models_nodes_cost_the_other_nothing() -> None:
    """Neither retries on its nodes nor an open breaker there."""
    async with two_models() as running:
        running.decode[1].fault = "status"
        lost = [await running.complete(model=OTHER) for _ in range(8)]
        got = [await running.complete(model=MODEL) for _ in range(4)]
        metrics = (await running.http.get("/metrics")).text

    assert all(each.status_code >= 500 for each in lost)
    assert {(each.status_code, each.headers["x-baton-path"]) for each in got} == {(200, "disaggregated")}
    assert {seen.body["model"] for seen in running.decode[0].seen} == {MODEL}
    assert f'baton_breaker_openings_total{{role="decode",url="{running.decode[0].url}"}} 0.0' in metrics


async def test_version_and_load_are_those_of_the_nodes_in_vllms_form() -> None:
    """Tools that ask a vLLM server find what they look for; the first page says where the rest is."""
    async with cluster(decode=2) as running:
        for node, requests in zip(running.decode, (2, 3), strict=True):
            node.change(versions={"vllm": "0.32.0", "baton": "0.1.0"})
            node._load = (requests, 9)

        async def all_known() -> bool:
            return bool((await running.http.get("/load")).json() == {"server_load": 5})

        await until_true(all_known)
        version = (await running.http.get("/version")).json()
        first = (await running.http.get("/")).json()["error"]["message"]

    assert "0.32.0" in version["version"].split(",")
    assert "/v1/models" in first
    assert "/dashboard" in first
