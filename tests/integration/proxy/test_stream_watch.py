"""Streams of decode nodes that are silent or drained go on on another node; those of a node that is merely slow stay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from tests.integration.proxy.test_failover import metric
from tests.integration.proxy.test_failures import assert_nothing_left
from tests.integration.proxy.test_resume import BODIES, KIND, PATHS, RANDOM, same_id, whole
from tests.support.cluster import Cluster, cluster, until_true
from tests.support.fake_answers import FIRST_ID, events
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


@KIND
async def test_a_stream_of_a_silent_node_goes_on_elsewhere(kind: str) -> None:
    """As one, and the silent node's connection is closed."""
    async with stalling() as running:
        asked = await begin(running, kind)
        fall_silent(running.decode[0])
        got = await asked
        resumed = await metric(running, 'baton_streams_resumed_total{kind="stalled"}')
        failed = await metric(running, 'baton_leg_failures_total{kind="stalled",role="decode"}')
        await assert_nothing_left(running)

    assert same_id(got.content) == same_id(whole(kind))
    assert (resumed, failed) == (1, 1)


async def test_a_stream_of_a_slow_node_stays() -> None:
    """It answers probes: silence of its stream alone is no failure."""
    async with stalling() as running:
        asked = await begin(running, "chat")
        await asyncio.sleep(1.5)
        assert not asked.done()
        running.decode[0].may_go_on.set()
        got = await asked
        seen = len(running.decode[1].seen)

    assert got.content == whole("chat")
    assert seen <= 1


async def test_the_only_decode_node_keeps_its_streams() -> None:
    """There is nowhere to go on."""
    async with stalling(decode=1) as running:
        asked = await begin(running, "chat")
        running.decode[0].late_probes = 10
        await asyncio.sleep(1.5)
        running.decode[0].may_go_on.set()
        got = await asked

    assert got.content == whole("chat")


@KIND
async def test_streams_leave_a_node_that_is_drained(kind: str) -> None:
    """It is no failure of the node's, and costs none of the retries."""
    async with stalling(retry_burst=1, retry_share=0) as running:
        asked = await begin(running, kind)
        node = running.decode[0]
        node.info = msgspec.structs.replace(node.info, state="draining")
        got = await asked
        resumed = await metric(running, 'baton_streams_resumed_total{kind="drained"}')
        nodes = (await running.http.get("/ready")).json()["nodes"]
        await assert_nothing_left(running)

    assert same_id(got.content) == same_id(whole(kind))
    assert resumed == 1
    assert {one["breaker"] for one in nodes} == {"closed"}


@pytest.mark.parametrize("silent", [True, False])
async def test_a_whole_answer_leaves_a_node_that_is_silent_or_drained(silent: bool) -> None:
    """The next node starts with the tokens that the first one has named."""
    async with stalling() as running:
        stalled, other = running.decode
        for node in running.decode:
            node.names_ahead = 4
        asked = await begin(running, "chat", stream=False)
        if silent:
            fall_silent(stalled)
        else:
            stalled.info = msgspec.structs.replace(stalled.info, state="draining")
        got = await asked
        await assert_nothing_left(running)

    assert got.status_code == 200
    last = other.seen[-1].params
    assert last is not None
    assert last.start == (tuple(range(FIRST_ID, FIRST_ID + 4)),)


async def test_whole_answers_that_wait_for_their_prompts_stay_on_a_node_that_misses_probes() -> None:
    """Nothing is due from it: silence is no failure."""
    async with stalling(max_attempts=1, stall_timeout_s=0.2) as running:
        for node in running.decode:
            node.fault, node.names_ahead, node.recomputes = "", 2, False
        running.prefill[0].may_answer.clear()
        asked = [
            asyncio.create_task(running.http.post(PATHS["chat"], json=BODIES["chat"], timeout=60)) for _ in range(8)
        ]
        await until_true(lambda: sum(len(node.seen) for node in running.decode) == 8)
        running.decode[0].late_probes = 4
        await asyncio.sleep(1)
        running.prefill[0].may_answer.set()
        got = await asyncio.gather(*asked)

    assert {one.status_code for one in got} == {200}


async def test_a_rolling_restart_loses_no_stream() -> None:
    """A node that was drained before is as good as any when the next one is."""
    async with stalling() as running:
        for node in running.decode:
            node.fault, node.token_delay_s = "", 0.05
        asked = asyncio.create_task(
            running.http.post(PATHS["chat"], json={**BODIES["chat"], **RANDOM, "max_tokens": 90})
        )
        await until_true(lambda: any(node.sent_bytes for node in running.decode))
        first = next(node for node in running.decode if node.seen)
        other = next(node for node in running.decode if node is not first)
        described = first.info
        first.info = msgspec.structs.replace(described, state="draining")
        await until_true(lambda: other.seen)
        first.info = described
        await asyncio.sleep(0.5)
        other.info = msgspec.structs.replace(other.info, state="draining")
        got = await asked

    assert got.content == b"".join(events(PATHS["chat"], 90))
    assert len(first.seen) == 2


async def test_a_draining_node_may_keep_its_streams_for_a_while() -> None:
    """Most end by themselves."""
    async with stalling(drain_handover_s=60) as running:
        asked = await begin(running, "chat")
        node = running.decode[0]
        node.info = msgspec.structs.replace(node.info, state="draining")
        await asyncio.sleep(1)
        assert not asked.done()
        node.may_go_on.set()
        got = await asked

    assert got.content == whole("chat")


@pytest.mark.parametrize("kind", ["completion", "chat", "message", "response"])
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
    assert started == [((1000,),)]
