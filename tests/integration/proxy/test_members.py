"""Members as probes and failures see them."""

from typing import Any

import pytest

from tests.support.cluster import Cluster, cluster, until_true
from tests.support.fake_answers import MODEL


async def state_of(running: Cluster, url: str) -> dict[str, Any]:
    """Return what `/ready` says of one node."""
    nodes = (await running.http.get("/ready")).json()["nodes"]
    return next(node for node in nodes if node["url"] == url)


async def until_state(running: Cluster, url: str, state: str) -> dict[str, Any]:
    async def reached() -> bool:
        return bool((await state_of(running, url))["state"] == state)

    await until_true(reached)
    return await state_of(running, url)


async def test_health_ready_models_metrics_and_docs_answer() -> None:
    """What peers mostly answer with 404."""
    async with cluster() as running:
        head = await running.http.head("/health")
        answers = {path: await running.http.get(path) for path in ("/health", "/ready", "/metrics", "/docs")}
        models = (await running.http.get("/v1/models")).json()
        paths = (await running.http.get("/openapi.json")).json()["paths"]

    assert head.status_code == 200
    assert {answer.status_code for answer in answers.values()} == {200}
    assert 'baton_nodes{role="decode",state="ready"} 1.0' in answers["/metrics"].text
    assert [model["id"] for model in models["data"]] == [MODEL]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/ready"} <= set(paths)


@pytest.mark.parametrize("policy", ["decode_local", "refuse"])
async def test_without_a_prefill_node_readiness_follows_the_policy(policy: str) -> None:
    """`decode_local` serves and says why in the head; `refuse` is not ready and answers 503."""
    async with cluster(ready=False, when_no_prefill=policy) as running:
        running.prefill[0].healthy = False
        await until_state(running, running.decode[0].url, "ready")
        await until_state(running, running.prefill[0].url, "down")
        ready = await running.http.get("/ready")
        got = await running.complete()

    if policy == "refuse":
        assert (ready.status_code, ready.json()["reasons"]) == (503, ["no prefill node is ready"])
        assert got.status_code == 503
    else:
        assert (ready.status_code, got.status_code) == (200, 200)
        assert (got.headers["x-baton-path"], got.headers["x-baton-reason"]) == ("local", "no prefill node is ready")


async def test_a_server_without_the_node_api_is_not_used() -> None:
    """A plain vLLM behind one of the URLs is found out."""
    async with cluster() as running:
        running.decode[0].has_node_api = False
        described = await until_state(running, running.decode[0].url, "unready")
        got = await running.complete()

    assert "no Baton node" in described["reason"]
    assert got.status_code == 503


async def test_a_connection_that_dies_as_it_is_used_again_is_replaced() -> None:
    """The race that a keep-alive time-out or restart can always win: a second request on an old connection."""
    async with cluster() as running:
        assert (await running.complete()).status_code == 200
        running.prefill[0].fault = running.decode[0].fault = "stale"
        got = [await running.complete(stream=True) for _ in range(3)]

    assert [(each.status_code, each.headers["x-baton-path"]) for each in got] == [(200, "disaggregated")] * 3


@pytest.mark.parametrize(("late", "states"), [(1, {"ready"}), (3, {"ready", "silent"})])
async def test_a_node_whose_answers_are_late_is_silent_and_not_down(late: int, states: set[str]) -> None:
    """A busy server is not a dead one."""
    async with cluster(decode=2, probe_timeout_s=0.3) as running:
        node = running.decode[0]
        seen, answered = set(), node.probes
        node.late_probes = late

        async def has_shown() -> bool:
            seen.add((await state_of(running, node.url))["state"])
            return (node.late_probes == 0 and node.probes > answered + 3) or "down" in seen

        await until_true(has_shown)

    assert seen == states
