"""Nodes that do not answer for the moment: silence is not failure, and what can be waited for is not refused."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.integration.proxy.test_disconnect import ask
from tests.support.cluster import COMPLETION, cluster, until_true
from tests.support.fake_vllm import FakeVllm

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


async def test_an_engine_that_is_gone_is_no_silent_one() -> None:
    """Its node says so, and no request waits."""
    async with cluster() as running:
        running.decode[0].change(state="failed")
        await running.until_state(running.decode[0], "unready")
        refused = await running.complete()

    assert refused.status_code == 503
