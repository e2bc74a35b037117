"""Streams leave a decode node that is alive with their KV: first what there is, while they go on, then what has been made since."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from baton.contracts.kv_transfer import FIELD, KEY
from tests.integration.proxy.test_failures import assert_nothing_left
from tests.integration.proxy.test_resume import BODIES, PATHS, RANDOM, TOKENS, same_id, whole
from tests.support.cluster import Cluster, cluster, until, until_true
from tests.support.fake_answers import FIRST_ID
from tests.support.fake_vllm import FakeVllm, Fault
from tests.support.strict_node import Seen

NODES = "/admin/nodes"
SECOND = " wörd1".encode()  # token of an answer: the first comes from the prefill node


@asynccontextmanager
async def moving(decode: int = 2, **settings: Any) -> AsyncIterator[Cluster]:
    """Run a cluster whose decode nodes send KV too, the first one alone in use."""
    settings = {"first_tokens": "3-alike", "drain_handover_s": 0, "both_ways": True, **settings}
    async with cluster(decode=decode, **settings) as running:
        for node in running.decode[1:]:
            await running.admin("POST", f"{NODES}/drain", json={"url": node.url})
        yield running


async def begin(running: Cluster, kind: str, count: int = 1, **more: Any) -> list[asyncio.Task[bytes]]:
    """Begin streams on the first decode node, which says nothing from their middle on, and take the others into use."""
    source, *others = running.decode
    source.fault = "stall"
    body = {**BODIES[kind], **RANDOM, **more}
    if kind == "response":
        del body["max_tokens"]
    has_begun = asyncio.Semaphore(0)

    async def ask() -> bytes:
        read = b""
        async with running.http.stream("POST", PATHS[kind], json=body, timeout=60) as got:
            async for piece in got.aiter_raw():
                if SECOND in piece and SECOND not in read:
                    has_begun.release()
                read += piece
        return read

    asked = [asyncio.create_task(ask()) for _ in range(count)]
    for _ in asked:
        await has_begun.acquire()
    await until_true(lambda: source.stalled == count)
    source.fault = ""
    for node in others:
        await running.admin("POST", f"{NODES}/drain", json={"url": node.url, "draining": False})
    await running.until_ready()
    return asked


async def leave(running: Cluster, order: str) -> None:
    got = await running.admin("POST", f"{NODES}/{order}", json={"url": running.decode[0].url})
    assert got.status_code == 200, got.text


async def view(running: Cluster) -> dict[str, Any]:
    nodes = (await running.admin("GET", NODES)).json()["nodes"]
    return next(node for node in nodes if node["url"] == running.decode[0].url)


async def until_streams(running: Cluster, **wanted: dict[str, int]) -> None:
    """Wait until so many streams have left, or stay, for these reasons."""
    await until(lambda: view(running), lambda seen: all(seen[f"streams_{name}"] == wanted[name] for name in wanted))


def params(seen: Seen) -> dict[str, Any]:
    """The signed parameters of a request, whether the node came to look at it or not."""
    return dict(seen.body.get(FIELD, {}).get(KEY, {}))


def legs(node: FakeVllm, role: str) -> list[Seen]:
    """The legs of moves that a node was sent: tokens of which it sends the KV, or gets it."""
    key = {"prefill": "start", "decode": "start_sent"}[role]
    return [seen for seen in node.seen if params(seen).get("role") == role and params(seen).get(key)]


@pytest.mark.parametrize(
    ("kind", "order"),
    [("completion", "drain"), ("chat", "evacuate"), ("message", "drain"), ("response", "evacuate")],
)
async def test_a_stream_moves_with_its_kv(kind: str, order: str) -> None:
    """One server's stream for the client. The prefill node has no part in it, and no retry is paid."""
    async with moving(retry_burst=1, retry_share=0) as running:
        (asked,) = await begin(running, kind)
        source, target = running.decode
        await leave(running, order)
        got = await asked
        moved = await running.metric('baton_streams_moved_total{result="moved"}')
        gaps = await running.metric('baton_stream_move_gap_seconds_count{result="moved"}')
        seen = await view(running)
        await assert_nothing_left(running)

    (ids,) = params(target.seen[-1])["start"]
    assert same_id(got) == same_id(whole(kind))
    assert ids == [FIRST_ID + at for at in range(len(ids))]
    assert [params(leg)["start"] for leg in legs(source, "prefill")] == [[ids]] * 2
    ahead, last = legs(target, "decode")
    assert all(params(leg)["start_sent"] for leg in (ahead, last))
    assert {ahead.body.get("max_tokens"), ahead.body.get("max_output_tokens")} == {len(ids) + 1, None}
    assert {**last.body, FIELD: 0} == {**source.seen[0].body, FIELD: 0}
    assert len(running.prefill[0].seen) == 1
    assert (moved, gaps, seen["streams_left"], seen["streams_staying"]) == (1, 1, {"moved": 1}, {})
    assert seen["state"] == ("draining" if order == "drain" else "ready")
    assert source.seen[0].cancelled


async def test_several_choices_move() -> None:
    """The KV of each goes ahead; the other node computes what was made since, if anything."""
    async with moving() as running:
        (asked,) = await begin(running, "completion", n=2)
        await leave(running, "evacuate")
        got = await asked
        left = (await view(running))["streams_left"]
        *ahead, last = running.decode[1].seen

    assert got == whole("completion", n=2)
    assert left == {"moved": 1}
    assert [params(leg)["start"] for leg in ahead] == [[ids] for ids in params(last)["start"]]
    assert [leg.body["n"] for leg in (*ahead, last)] == [1, 1, 2]
    assert params(last)["peer"] == ""


async def test_few_move_at_once() -> None:
    """What waits and why is shown, and new requests go on getting answers from the node."""
    async with moving() as running:
        asked = await begin(running, "completion", 10)
        source, target = running.decode
        target.may_answer.clear()
        await leave(running, "evacuate")
        await until_true(lambda: len(target.seen) == 4)
        await asyncio.sleep(0.3)
        staying, sending = (await view(running))["streams_staying"], len(target.seen)
        target.may_answer.set()
        got = await asyncio.gather(*asked)
        left = (await view(running))["streams_left"]
        await running.admin("POST", f"{NODES}/drain", json={"url": target.url})
        later = await running.complete()

    assert (staying, sending) == ({"sending": 4, "waiting": 6}, 4)
    assert set(got) == {whole("completion")}
    assert left == {"moved": 10}
    assert later.status_code == 200
    assert not source.seen[-1].cancelled


def strike(node: FakeVllm, role: str, fault: Fault, *, spared: int = 0) -> None:
    """Have a node fail at its part in moves, but for the first legs."""

    def fault_of(seen: Seen) -> Fault:
        moves = legs(node, role)
        return fault if seen in moves[spared:] else ""

    node.fault_of = fault_of


@pytest.mark.parametrize(("order", "role", "fault"), [("drain", "prefill", "drop"), ("evacuate", "decode", "status")])
async def test_a_stream_stays_whose_kv_cannot_be_sent_ahead(order: str, role: str, fault: Fault) -> None:
    """It is not touched. A node that is drained is going to stop: its streams leave without KV then."""
    async with moving(breaker_failures=100) as running:
        (asked,) = await begin(running, "chat")
        source, target = running.decode
        strike(source if role == "prefill" else target, role, fault)
        await leave(running, order)
        if order == "evacuate":
            await until_streams(running, staying={"failed": 1})
            source.may_go_on.set()
        got = await asked
        left = (await view(running))["streams_left"]
        await assert_nothing_left(running)

    assert got == whole("chat")
    assert left == ({"failed": 1} if order == "evacuate" else {"failed": 1, "recomputed": 1})
    assert source.seen[0].cancelled == (order == "drain")


@pytest.mark.parametrize(("role", "fault"), [("prefill", "drop"), ("decode", "status")])
async def test_a_stream_goes_on_where_the_last_of_its_kv_does_not_come(role: str, fault: Fault) -> None:
    """The other node has started: it is told, and computes what it does not have. Or it has not: another one, with the prefill node that has had the prompt."""
    async with moving(prefill=2, decode=3, breaker_failures=100) as running:
        (asked,) = await begin(running, "chat")
        source, *targets = running.decode
        had = next(each for each in running.prefill if each.seen)
        for node in [source] if role == "prefill" else targets:
            strike(node, role, fault, spared=1)
        await leave(running, "evacuate")
        got = await asked
        left = (await view(running))["streams_left"]
        await assert_nothing_left(running)

    assert got == whole("chat")
    has_started = sum(node.computed for node in targets)  # before the source failed; no node that fails has
    assert has_started <= (role == "prefill")
    assert left == {"moved" if has_started else "recomputed": 1}
    assert len(had.seen) == 2 - has_started


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("phase", [1, 2])
async def test_a_node_that_dies_while_a_stream_moves(role: str, phase: int) -> None:
    """Ahead, the source's death breaks the stream, and the target's is none of its business; then either is a failed attempt."""
    async with moving(decode=3, breaker_failures=100) as running:
        (asked,) = await begin(running, "chat")
        source, *targets = running.decode
        for node in [source] if role == "prefill" else targets:
            strike(node, role, "hang", spared=phase - 1)
        await leave(running, "evacuate")
        await until_true(lambda: any(len(legs(node, role)) == phase for node in running.decode))
        struck = next(node for node in running.decode if legs(node, role))
        for node in targets:
            node.fault_of = lambda _: ""
        await struck.stop()
        if role == "decode" and phase == 1:
            source.may_go_on.set()
        got = await asked
        moved = await running.metric('baton_streams_moved_total{result="moved"}')

    assert got == whole("chat")
    assert moved <= (role == "prefill" and phase == 2)  # the other node may have started, and has what went ahead


@pytest.mark.parametrize("phase", [1, 2])
async def test_a_client_that_leaves_while_its_stream_moves(phase: int) -> None:
    """All legs are closed, and the node that sends is told."""
    async with moving() as running:
        (asked,) = await begin(running, "chat")
        source, target = running.decode
        strike(target, "decode", "hang", spared=phase - 1)
        await leave(running, "evacuate")
        await until_true(lambda: len(legs(target, "decode")) == phase)
        asked.cancel()
        await assert_nothing_left(running)
        last = params(legs(target, "decode")[-1])["id"]
        await until_true(lambda: [last] in source.cancels)

    assert target.seen[-1].cancelled


@pytest.mark.parametrize("phase", [1, 2])
async def test_a_source_without_a_free_place(phase: int) -> None:
    """Its transfer's request waits behind its streams, for `stall_timeout_s` and no longer. It is not taken for silent."""
    async with moving(stall_timeout_s=0.3) as running:
        (asked,) = await begin(running, "chat")
        source, target = running.decode
        strike(source, "prefill", "hang", spared=phase - 1)
        await leave(running, "evacuate")
        result = "failed" if phase == 1 else "moved"
        await until_streams(running, left={result: 1})
        await until_true(lambda: legs(source, "prefill")[-1].cancelled)
        seen = await view(running)
        source.may_go_on.set()
        got = await asked
        await assert_nothing_left(running)

    assert got == whole("chat")
    assert seen["state"] == "ready"
    assert target.computed == phase - 1


async def test_a_node_that_has_started_with_tokens_is_told_that_no_kv_comes() -> None:
    """It says them before KV could come, and then waited for that of a prefill node that had failed, up to `transfer_timeout_s`."""
    async with moving(both_ways=False, transfer_timeout_s=0.5) as running:
        (asked,) = await begin(running, "completion")
        running.prefill[0].fault_of = lambda _: "hang"
        await leave(running, "evacuate")
        got = await asked
        target = running.decode[1]
        await assert_nothing_left(running)

    assert got == whole("completion")
    assert target.computed == 1


async def test_a_stream_that_begins_after_the_order_moves_if_its_node_was_asked_before() -> None:
    async with moving(relay_first_token=False) as running:
        source, target = running.decode
        source.may_answer.clear()
        asked = asyncio.create_task(running.complete(stream=True, max_tokens=TOKENS))
        await until_true(lambda: source.seen)
        await running.admin("POST", f"{NODES}/drain", json={"url": target.url, "draining": False})
        await running.until_ready()
        await leave(running, "evacuate")
        await until_streams(running, staying={"beginning": 1})
        source.fault = "stall"
        source.may_answer.set()
        got = await asked
        left = (await view(running))["streams_left"]

    assert got.content == whole("completion")
    assert left == {"moved": 1}


async def test_an_order_that_is_given_twice() -> None:
    """What is on its way is not begun once more; what had failed is."""
    async with moving(breaker_failures=100) as running:
        (asked,) = await begin(running, "completion")
        source, target = running.decode
        strike(source, "prefill", "status")
        await leave(running, "evacuate")
        await until_streams(running, staying={"failed": 1})
        source.fault_of = lambda _: ""
        target.may_answer.clear()
        await leave(running, "evacuate")
        await until_true(lambda: len(legs(source, "prefill")) == 2)
        await leave(running, "evacuate")
        await asyncio.sleep(0.3)  # three looks
        sent = len(legs(source, "prefill"))
        target.may_answer.set()
        got = await asked
        left = (await view(running))["streams_left"]

    assert sent == 2
    assert got == whole("completion")
    assert left == {"moved": 1}
