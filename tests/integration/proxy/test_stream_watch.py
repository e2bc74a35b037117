"""Streams of decode nodes that are silent or drained go on on another node; those of a node that is merely slow stay."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from baton.proxy.nodes.health_probe import BUSY_EVERY_S
from tests.integration.proxy.test_failures import assert_nothing_left
from tests.integration.proxy.test_resume import BODIES, PATHS, RANDOM, same_id, whole
from tests.support.cluster import Cluster, cluster, until_true
from tests.support.fake_answers import FIRST_ID
from tests.support.fake_vllm import FakeVllm


@asynccontextmanager
async def stalling(decode: int = 2, **more: Any) -> AsyncIterator[Cluster]:
    """Run a cluster whose first decode node says nothing from the middle of a stream on."""
    settings = {"probe_interval_s": 0.1, "probe_timeout_s": 0.2, "stall_timeout_s": 0.4, "drain_handover_s": 0} | more
    async with cluster(decode=decode, first_tokens="3-alike", **settings) as running:
        running.prefill[0].first_token_delay_s = 0.1
        for node in running.decode:
            node.recomputes = True
        running.decode[0].fault = "stall"
        yield running


async def begin(running: Cluster, kind: str, **more: Any) -> asyncio.Task[httpx.Response]:
    """Ask until the first decode node has the request, where it stands still."""
    body = {**BODIES[kind], **RANDOM, **more}
    if kind == "response":
        del body["max_tokens"]
    while True:
        asked = asyncio.create_task(running.http.post(PATHS[kind], json=body, timeout=60))
        while not asked.done() and not running.decode[0].seen:
            await asyncio.wait([asked], timeout=0.01)
        if not asked.done():
            return asked


def fall_silent(node: FakeVllm) -> None:
    """Answer no probe any more."""
    node.late_probes = 1_000_000


def drain(node: FakeVllm) -> None:
    node.change(state="draining")


@pytest.mark.parametrize(("kind", "fails", "how"), [("chat", fall_silent, "stalled"), ("response", drain, "drained")])
async def test_a_stream_leaves_a_node_that_is_silent_or_drained(
    kind: str, fails: Callable[[FakeVllm], None], how: str
) -> None:
    """As one, and the node's connection is closed. A drain is no failure of the node's, and costs none of the retries."""
    async with stalling(retry_burst=1, retry_share=0) as running:
        asked = await begin(running, kind)
        fails(running.decode[0])
        got = await asked
        resumed = await running.metric(f'baton_streams_resumed_total{{kind="{how}"}}')
        failed = await running.metric('baton_leg_failures_total{kind="stalled",role="decode"}')
        nodes = await running.nodes()
        await assert_nothing_left(running)

    assert same_id(got.content) == same_id(whole(kind))
    assert (resumed, failed) == (1, how == "stalled")
    assert {one["breaker"] for one in nodes} == {"closed"}


async def test_a_stream_leaves_such_a_node_that_is_no_member_any_more() -> None:
    """It has been removed, has left its DNS name, or has changed its role: it is probed while it carries requests."""
    async with stalling() as running:
        asked = await begin(running, "chat")
        await running.admin("DELETE", "/admin/nodes", params={"url": running.decode[0].url})
        fall_silent(running.decode[0])
        got = await asked
        resumed = await running.metric('baton_streams_resumed_total{kind="stalled"}')
        await running.until_nothing_in_flight()
        await asyncio.sleep(2 * BUSY_EVERY_S)
        probes = running.decode[0].probes
        await asyncio.sleep(0.5)
        assert running.decode[0].probes == probes

    assert same_id(got.content) == same_id(whole("chat"))
    assert resumed == 1


@pytest.mark.parametrize("is_drained", [False, True])
async def test_a_stream_of_a_slow_node_stays(is_drained: bool) -> None:
    """It answers probes: silence of its stream alone is no failure. A draining node may have some time: most streams end by themselves."""
    async with stalling(drain_handover_s=60) as running:
        asked = await begin(running, "chat")
        if is_drained:
            drain(running.decode[0])
        await asyncio.sleep(1)
        assert not asked.done()
        running.decode[0].may_go_on.set()
        got = await asked
        seen = len(running.decode[1].seen)

    assert got.content == whole("chat")
    assert seen <= 1


@pytest.mark.parametrize("kind", ["completion", "message"])
async def test_a_node_that_falls_silent_before_its_first_event(kind: str) -> None:
    """The client has the prefill node's token: another decode node starts with it."""
    async with stalling() as running:
        running.prefill[0].first_token_delay_s = 0.0
        for node in running.decode:
            node.recomputes, node.fault = False, ""
        stopped, other = running.decode
        stopped.may_answer.clear()
        asked = await begin(running, kind)
        fall_silent(stopped)
        got = await asked
        started = [seen.params.start for seen in other.seen if seen.params is not None and seen.params.start]
        stopped.may_answer.set()
        await until_true(lambda: all(seen.finished or seen.cancelled for seen in stopped.seen))

    assert same_id(got.content) == same_id(whole(kind))
    assert started == [((FIRST_ID,),)]
