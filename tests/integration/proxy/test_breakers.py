"""Nodes that answer probes and fail requests: isolated, tried again, and nobody else is blamed."""

import asyncio
from typing import Any

import httpx
import pytest

from baton.contracts.http import error_body
from tests.support.cluster import Cluster, cluster, until_true
from tests.support.fake_vllm import FakeVllm, Fault

FAILURES = 3
NEVER_S = 600.0


async def described(running: Cluster, node: FakeVllm) -> dict[str, Any]:
    """Return what `/ready` says of one node."""
    nodes = (await running.http.get("/ready")).json()["nodes"]
    return next(each for each in nodes if each["url"] == node.url)


async def openings(running: Cluster, node: FakeVllm) -> float:
    """Return how often a node's breaker has opened."""
    name = f'baton_breaker_openings_total{{role="{node.role}",url="{node.url}"}} '
    lines = (await running.http.get("/metrics")).text.splitlines()
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


async def isolate(running: Cluster, node: FakeVllm) -> list[httpx.Response]:
    """Send requests, each when the node is in use, until it is isolated; return the answers."""
    got: list[httpx.Response] = []

    async def in_use_or_isolated() -> bool:
        return (await described(running, node))["state"] in ("ready", "isolated")

    while (await described(running, node))["state"] != "isolated":
        assert len(got) < 10 * FAILURES
        got.append(await running.complete())
        await until_true(in_use_or_isolated)
    return got


@pytest.mark.parametrize(
    ("role", "fault"),
    [("prefill", "status"), ("prefill", "drop"), ("decode", "status"), ("decode", "drop"), ("decode", "empty")],
)
async def test_a_node_that_keeps_failing_is_isolated(role: str, fault: Fault) -> None:
    """It answers every probe, and gets nothing more; no client has noticed."""
    async with cluster(prefill=2, decode=2, breaker_failures=FAILURES, breaker_open_s=NEVER_S) as running:
        bad = (running.prefill if role == "prefill" else running.decode)[0]
        bad.fault = fault
        before = await isolate(running, bad)
        seen, state = len(bad.seen), await described(running, bad)
        after = [await running.complete() for _ in range(8)]
        opened = await openings(running, bad)

    assert {each.status_code for each in (*before, *after)} == {200}
    assert len(bad.seen) == seen
    assert (state["state"], state["breaker"]) == ("isolated", "open")
    assert state["reason"].startswith(f"{FAILURES} requests in a row failed")
    assert {each.headers["x-baton-path"] for each in after} == {"disaggregated"}
    assert opened == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_busy_node_is_not_isolated(role: str) -> None:
    """It says 429; others take what it would not, and it is asked again."""
    async with cluster(prefill=2, decode=2, breaker_failures=FAILURES, breaker_open_s=NEVER_S) as running:
        busy = (running.prefill if role == "prefill" else running.decode)[0]
        busy.fault, busy.status = "status", 429
        got: list[httpx.Response] = []
        while len(busy.seen) < 2 * FAILURES and len(got) < 40 * FAILURES:
            got.append(await running.complete())
        state = await described(running, busy)

    assert len(busy.seen) == 2 * FAILURES
    assert {(each.status_code, each.headers["x-baton-path"]) for each in got} == {(200, "disaggregated")}
    assert state["state"] == "ready"


async def _is_ready(running: Cluster, node: FakeVllm) -> bool:
    return bool((await described(running, node))["state"] == "ready")


async def test_decode_nodes_that_fail_are_not_held_against_the_prefill_node() -> None:
    """Its legs are cut short because of them; that is no failure of its own."""
    async with cluster(decode=2, breaker_failures=1) as running:
        running.prefill[0].first_token_delay_s = 0.05
        for node in running.decode:
            node.fault = "status"
        got = [await running.complete() for _ in range(5)]
        state = await described(running, running.prefill[0])
        opened = await openings(running, running.prefill[0])

    assert {each.status_code for each in got} == {500}
    assert (state["state"], state["breaker"], opened) == ("ready", "closed", 0)


async def test_a_prefill_node_that_fails_is_not_held_against_the_decode_node() -> None:
    """The decode node's leg waits for KV in vain and is cut short."""
    async with cluster(prefill=2, decode=2, breaker_failures=1, breaker_open_s=NEVER_S) as running:
        for node in running.prefill:
            node.fault = "status"
        got = [await running.complete() for _ in range(6)]
        opened = [await openings(running, node) for node in (*running.prefill, *running.decode)]

    assert {each.status_code for each in got} == {200}
    assert opened == [1, 1, 0, 0]
    assert [len(node.seen) for node in running.prefill] == [1, 1]


async def test_a_clients_mistake_is_held_against_nobody() -> None:
    """A 4xx says that the node works."""
    async with cluster(prefill=2, decode=2, breaker_failures=1) as running:
        for node in (*running.prefill, *running.decode):
            node.fault, node.status, node.error = "status", 400, error_body("too long", code=400)
        got = [await running.complete() for _ in range(5)]
        opened = [await openings(running, node) for node in (*running.prefill, *running.decode)]

    assert {each.status_code for each in got} == {400}
    assert opened == [0, 0, 0, 0]


async def test_clients_that_leave_are_held_against_nobody() -> None:
    """Both legs are cut by us."""
    async with cluster(prefill=2, decode=2, breaker_failures=1) as running:
        for node in (*running.prefill, *running.decode):
            node.fault = "hang"
        requests = [asyncio.create_task(running.complete()) for _ in range(4)]
        await until_true(lambda: all(len(node.seen) == 2 for node in (*running.prefill, *running.decode)))
        for request in requests:
            request.cancel()
        seen = [request for node in (*running.prefill, *running.decode) for request in node.seen]
        await until_true(lambda: all(request.cancelled for request in seen))
        opened = [await openings(running, node) for node in (*running.prefill, *running.decode)]

    assert opened == [0, 0, 0, 0]


async def test_a_prefill_node_that_times_out_is_isolated() -> None:
    """Accepting and never answering is the failure that costs most."""
    async with cluster(breaker_failures=2, breaker_open_s=NEVER_S, transfer_timeout_s=0.2) as running:
        running.prefill[0].fault = "hang"
        got = [await running.complete() for _ in range(4)]

    assert [each.headers["x-baton-path"] for each in got] == ["recomputed", "recomputed", "local", "local"]
    assert [request.cancelled for request in running.prefill[0].seen] == [True, True]


async def test_a_restarted_node_is_no_longer_isolated() -> None:
    """Another process is behind the address."""
    async with cluster(decode=2, breaker_failures=1, breaker_open_s=NEVER_S) as running:
        bad = running.decode[0]
        bad.fault = "status"
        await isolate(running, bad)
        bad.fault = ""
        bad.change(incarnation="2")
        await until_true(lambda: _is_ready(running, bad))


async def test_a_node_that_drains_gets_no_work_and_ends_what_it_has() -> None:
    """Streams go on to their end; the state is its own, since nothing is wrong."""
    async with cluster(decode=2) as running:
        leaving = running.decode[0]
        leaving.may_answer.clear()
        streams = [asyncio.create_task(running.complete(stream=True)) for _ in range(4)]
        await until_true(lambda: len(leaving.seen) == 2)
        leaving.change(state="draining")
        await until_true(lambda: _is_draining(running, leaving))
        got = [await running.complete() for _ in range(4)]
        leaving.may_answer.set()
        streamed = await asyncio.gather(*streams)

    assert len(leaving.seen) == 2
    assert {each.status_code for each in got} == {200}
    assert all(each.content.endswith(b"data: [DONE]\n\n") for each in streamed)


async def _is_draining(running: Cluster, node: FakeVllm) -> bool:
    return bool((await described(running, node))["state"] == "draining")
