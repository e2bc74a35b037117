"""The first token comes from the prefill node: the client has it before the decode node answers, and sees one stream."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.integration.proxy.test_failures import assert_nothing_left
from tests.integration.proxy.test_resume import BODIES, PATHS, RANDOM, TOKENS, whole
from tests.support.cluster import Cluster, cluster, until_true
from tests.support.fake_answers import FIRST_ID, events
from tests.support.fake_vllm import FakeVllm


@asynccontextmanager
async def relaying(**settings: Any) -> AsyncIterator[Cluster]:
    """Run nodes that sample alike."""
    async with cluster(first_tokens="3-alike", probe_interval_s=30.0, **settings) as running:
        yield running


async def ask(running: Cluster, kind: str, **more: Any) -> httpx.Response:
    return await running.http.post(PATHS[kind], json={**BODIES[kind], **more})


@asynccontextmanager
async def first_event(
    running: Cluster, kind: str, **more: Any
) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[bytes], bytes]]:
    """Ask; give the answer with the first token of each choice, which came while the decode node said nothing."""
    running.hold()
    async with running.http.stream("POST", PATHS[kind], json={**BODIES[kind], **more}) as got:
        rest = got.aiter_raw()
        read = b""
        async with asyncio.timeout(10):
            while read.count("wörd".encode()) < more.get("n", 1):
                read += await anext(rest)
        yield got, rest, read


async def read_all(rest: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in rest])


def leg(node: FakeVllm, index: int = -1) -> Any:
    """The parameters of one of the requests that a node has seen."""
    return node.seen[index].params


@pytest.mark.parametrize(("kind", "all_"), [("completion", False), ("chat", True)])
async def test_the_client_has_the_first_token_before_the_decode_node_answers(kind: str, *, all_: bool) -> None:
    """Byte for byte the stream of one server, though two nodes have sent the token."""
    more = {"n": 3, "return_token_ids": True, "stream_options": {"include_usage": True}} if all_ else {}
    async with relaying() as running:
        async with first_event(running, kind, **RANDOM, **more) as (got, rest, begun):
            running.release()
            read = begun + await read_all(rest)
        relayed = await running.metric('baton_first_tokens_total{source="relayed"}')
        gaps = await running.metric("baton_second_token_gap_seconds_count")
        await assert_nothing_left(running)

    assert got.headers["x-baton-path"] == "disaggregated"
    assert read == (whole(kind, n=3, ids=True, usage=True) if all_ else whole(kind))
    assert (relayed, gaps) == (1, 1)
    assert leg(running.prefill[0]).relays
    assert running.prefill[0].seen[0].body["max_tokens"] == TOKENS


async def test_an_answer_that_ends_with_its_first_token_needs_no_decode_node() -> None:
    """The client has all of it while the decode node waits, which is told to stop."""
    async with relaying() as running:
        running.prefill[0].tokens = 1
        running.hold()
        got = await ask(running, "chat", stream=True, max_tokens=None)
        await until_true(lambda: running.decode[0].seen[0].cancelled)
        running.release()
        await assert_nothing_left(running)

    assert got.content == b"".join(events(PATHS["chat"], 1))


async def test_a_decode_node_that_has_the_end_as_soon_as_the_prefill_node_adds_none() -> None:
    """The two have begun their answers in different seconds, so that their events are not alike."""
    async with relaying() as running:
        running.prefill[0].tokens = running.decode[0].tokens = 1
        running.decode[0].created = 2
        got = [await ask(running, "completion", stream=True, max_tokens=None) for _ in range(20)]
        await assert_nothing_left(running)

    assert {answer.content for answer in got} <= {b"".join(events(PATHS["completion"], 1, created=at)) for at in (1, 2)}


@pytest.mark.parametrize(("kind", "n"), [("completion", 3), ("chat", 1), ("message", 1)])
async def test_a_decode_node_that_fails_after_the_first_token(kind: str, n: int) -> None:
    """Of each answer, which has a transfer of its own; another node starts each with its token: the client sees one stream."""
    async with relaying(decode=2) as running:
        more = {"n": n} if n > 1 else {}
        async with first_event(running, kind, **RANDOM, **more) as (_, rest, begun):
            first = next(node for node in running.decode if node.seen)
            first.fault = "drop"
            await first.stop()
            running.release()
            read = begun + await read_all(rest)
        other = next(node for node in running.decode if node is not first)

    assert read == whole(kind, **more)
    assert leg(running.prefill[0], 0).choices == leg(first).choices == (n > 1)
    assert leg(other).start == ((FIRST_ID,),) * n
    assert not leg(other).choices


async def test_a_prefill_node_that_dies_after_its_token() -> None:
    """The decode node is given a moment; then it computes the prompt, and starts with the token."""
    async with relaying() as running:
        running.prefill[0].token_delay_s = 0.05
        running.prefill[0].fault = "cut"
        async with first_event(running, "chat", **RANDOM) as (_, rest, begun):
            await until_true(lambda: len(running.decode[0].seen) == 2)
            running.release()
            read = begun + await read_all(rest)
        await assert_nothing_left(running)

    assert read == whole("chat")
    assert leg(running.decode[0]).start == ((FIRST_ID,),)
    assert leg(running.decode[0]).peer == ""


async def test_a_decode_node_that_has_sampled_another_token() -> None:
    """The KV did not come and it computed the prompt itself: it is asked again, with the token that the client has."""
    async with relaying() as running:
        running.decode[0].recomputes, running.decode[0].drift = True, 2
        async with first_event(running, "completion", **RANDOM) as (_, rest, begun):
            running.release()
            read = begun + await read_all(rest)
        resumed = await running.metric('baton_streams_resumed_total{kind="refused"}')
        ready = (await running.http.get("/ready")).json()

    assert read == whole("completion")
    assert resumed == 1
    assert all(node["state"] == "ready" for node in ready["nodes"])


async def test_a_prefill_node_whose_engine_is_dead_costs_the_others_nothing() -> None:
    """What it said is forgotten: the next one's token is relayed."""
    async with relaying(prefill=2) as running:
        dead, other = running.prefill
        dead.fault = "error first"
        running.decode[0].first_token_delay_s = 0.3
        got = await ask(running, "chat", **RANDOM)
        while not dead.seen:
            got = await ask(running, "chat", **RANDOM)
        relayed = await running.metric('baton_first_tokens_total{source="relayed"}')
        nodes = {node["url"]: node for node in await running.nodes()}

    assert got.content == whole("chat")
    assert relayed >= 1
    assert nodes[other.url]["state"] == "ready"


async def test_no_node_that_could_start_with_it() -> None:
    """The stream ends with an error event: no token twice, none changed."""
    async with relaying() as running, first_event(running, "chat", **RANDOM) as (_, rest, begun):
        await running.decode[0].stop()
        read = begun + await read_all(rest)

    assert whole("chat").startswith(read[: read.index(b'data: {"error"')])
    assert read.count("wörd".encode()) == 1


async def test_what_is_not_relayed() -> None:
    """The decode node's stream is all there is, and a metric says why."""
    requests: list[tuple[dict[str, Any], str]] = [
        ({"stream": False}, "whole"),
        ({"stream": True, "prompt": ["a", "b"]}, "several"),
        ({"stream": True, "echo": True}, "echo"),
    ]
    # These do not sample alike: the prefill node's first token need not be the decode node's.
    async with relaying() as alike, relaying(described={"first_tokens": "3-other"}) as unlike:
        for running, more, why in (*((alike, *each) for each in requests), (unlike, {"stream": True}, "nodes")):
            got = await ask(running, "completion", **more)

            assert got.status_code == 200
            assert await running.metric(f'baton_first_tokens_total{{source="{why}"}}') == 1
            assert not leg(running.prefill[0]).relays
