"""Members as probes and failures see them."""

from tests.support.cluster import cluster, until_true
from tests.support.fake_answers import MODEL


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


async def test_without_a_prefill_node_readiness_follows_the_policy() -> None:
    """`refuse` is not ready and answers 503; for `decode_local` see `test_conditional.py`."""
    async with cluster(ready=False, when_no_prefill="refuse") as running:
        running.prefill[0].healthy = False
        await running.until_state(running.decode[0], "ready")
        await running.until_state(running.prefill[0], "down")
        ready = await running.http.get("/ready")
        got = await running.complete()

    assert (ready.status_code, ready.json()["reasons"]) == (503, ["no prefill node is ready"])
    assert got.status_code == 503


async def test_a_server_without_the_node_api_is_not_used() -> None:
    """A plain vLLM behind one of the URLs is found out."""
    async with cluster() as running:
        running.decode[0].has_node_api = False
        described = await running.until_state(running.decode[0], "unready")
        got = await running.complete()

    assert "no Baton node" in described["reason"]
    assert got.status_code == 503


async def test_a_node_whose_answers_are_late_is_silent_and_not_down() -> None:
    """A busy server is not a dead one."""
    async with cluster(decode=2, probe_timeout_s=0.3) as running:
        node = running.decode[0]
        seen, answered = set(), node.probes
        node.late_probes = 3

        async def has_shown() -> bool:
            seen.add((await running.state_of(node))["state"])
            return (node.late_probes == 0 and node.probes > answered + 3) or "down" in seen

        await until_true(has_shown)

    assert seen == {"ready", "silent"}
