"""Members as probes and failures see them.

Silence is not failure, and what can be waited for is not refused. What the proxy itself cannot do is no fault of a node.
"""

import asyncio
import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.integration.proxy.test_cancels import ask
from tests.support.cluster import COMPLETION, cluster, until_true
from tests.support.fake_answers import MODEL
from tests.support.fake_vllm import FakeVllm


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


CLIENTS = 8


@contextmanager
def engine_stopped(node: FakeVllm) -> Iterator[None]:
    """The engine is stopped: its node goes on answering for itself, and says so; requests wait."""
    node.may_answer.clear()
    node.change(state="silent")
    yield
    node.may_answer.set()
    node.change(state="ready")


@contextmanager
def process_stopped(node: FakeVllm) -> Iterator[None]:
    """The node's API process is stopped: the kernel takes connections, and nothing is answered."""
    node.may_answer.clear()
    node.late_probes = 1 << 30
    yield
    node.may_answer.set()
    node.late_probes = 0


@pytest.mark.parametrize(("stopped", "probe_timeout_s"), [(engine_stopped, 20.0), (process_stopped, 0.2)])
async def test_requests_wait_for_the_only_decode_node(
    stopped: Callable[[FakeVllm], AbstractContextManager[None]], probe_timeout_s: float
) -> None:
    """However long it is silent, within their own time; the proxy stays ready, and says what it waits for."""
    async with cluster(probe_timeout_s=probe_timeout_s) as running:
        node = running.decode[0]
        with stopped(node):
            before = [asyncio.create_task(running.complete()) for _ in range(CLIENTS)]
            await running.until_state(node, "silent")
            during = [asyncio.create_task(running.complete()) for _ in range(CLIENTS)]
            ready, models = await running.http.get("/ready"), await running.http.get("/v1/models")
            metrics = (await running.http.get("/metrics")).text
            await until_true(lambda: len(node.seen) == 2 * CLIENTS)
        answers = await asyncio.gather(*before, *during)
        await running.until_ready()

    assert (ready.status_code, ready.json()["reasons"], len(models.json()["data"])) == (200, [], 1)
    assert f'baton_node_state{{role="decode",state="silent",url="{node.url}"}} 1.0' in metrics
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-baton-path"] for answer in answers} == {"disaggregated"}


async def test_the_wait_ends_with_the_client_or_its_time() -> None:
    """Nothing is kept for a client that left; one whose time is over is told so."""
    async with cluster() as running:
        node = running.decode[0]
        with engine_stopped(node):
            await running.until_state(node, "silent")
            _, writer = await ask(running, stream=True)
            await until_true(lambda: node.seen)
            headers = {"x-request-timeout-s": "0.5"}
            late = await running.http.post("/v1/completions", json=COMPLETION, headers=headers)
            writer.close()
            await until_true(lambda: all(seen.cancelled for seen in node.seen))
            await writer.wait_closed()
            await running.until_nothing_in_flight()

    assert late.status_code == 504


async def test_nodes_stay_in_use_when_the_proxy_can_open_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left, here or in the system: requests and probes fail for a while, and no node is taken for dead."""
    codes = itertools.cycle((errno.EMFILE, errno.ENFILE))

    async def fails(*_: Any, **__: Any) -> None:
        raise OSError(next(codes), "none is left")

    async with cluster(prefill=2, decode=2, breaker_failures=2) as running:
        with monkeypatch.context() as patched:
            patched.setattr("baton.proxy.http.pool.Pool.connect", fails)
            failed = await asyncio.gather(*(running.complete() for _ in range(20)))
            nodes = await running.nodes()
            counted = await running.metric('baton_leg_failures_total{kind="own",role="decode"}')
        after = await running.complete()

    assert {each.status_code for each in failed} <= {200, 502, 503}
    assert {each.status_code for each in failed} != {200}
    assert {node["state"] for node in nodes} == {"ready"}
    assert counted
    assert after.status_code == 200
