"""Nodes that answer probes and fail requests: isolated, tried again, and no other node is blamed."""

import asyncio

import httpx
import pytest

from tests.support.cluster import Cluster, cluster, until, until_true
from tests.support.fake_vllm import FakeVllm, Fault

FAILURES = 3
NEVER_S = 600.0


async def openings(running: Cluster, node: FakeVllm) -> float:
    """Return how often a node's breaker has opened."""
    return await running.metric(f'baton_breaker_openings_total{{role="{node.role}",url="{node.url}"}}')


async def isolate(running: Cluster, node: FakeVllm) -> list[httpx.Response]:
    """Send requests, each when the node is in use, until it is isolated; return the answers."""
    got: list[httpx.Response] = []
    while (await running.state_of(node))["state"] != "isolated":
        assert len(got) < 10 * FAILURES
        got.append(await running.complete())
        await until(lambda: running.state_of(node), lambda seen: seen["state"] in ("ready", "isolated"))
    return got


@pytest.mark.parametrize(
    ("role", "fault"),
    [("prefill", "status"), ("decode", "drop")],
)
async def test_a_node_that_keeps_failing_is_isolated(role: str, fault: Fault) -> None:
    """It answers every probe, and gets nothing more; no client has noticed."""
    async with cluster(prefill=2, decode=2, breaker_failures=FAILURES, breaker_open_s=NEVER_S) as running:
        bad = (running.prefill if role == "prefill" else running.decode)[0]
        bad.fault = fault
        before = await isolate(running, bad)
        seen, state = len(bad.seen), await running.state_of(bad)
        after = [await running.complete() for _ in range(8)]
        opened = await openings(running, bad)

    assert {each.status_code for each in (*before, *after)} == {200}
    assert len(bad.seen) == seen
    assert (state["state"], state["breaker"]) == ("isolated", "open")
    assert state["reason"].startswith(f"{FAILURES} requests in a row failed")
    assert {each.headers["x-baton-path"] for each in after} == {"disaggregated"}
    assert opened == 1


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


async def test_what_is_held_against_no_node() -> None:
    """Clients that leave: both legs are cut by us. Nor do prefill nodes answer for legs that are cut short because of decode nodes that fail."""
    async with cluster(prefill=2, decode=2, breaker_failures=1) as running:
        for node in (*running.prefill, *running.decode):
            node.fault = "hang"
        requests = [asyncio.create_task(running.complete()) for _ in range(4)]
        await until_true(lambda: all(len(node.seen) == 2 for node in (*running.prefill, *running.decode)))
        for request in requests:
            request.cancel()
        seen = [request for node in (*running.prefill, *running.decode) for request in node.seen]
        await until_true(lambda: all(request.cancelled for request in seen))
        after_leaving = [await openings(running, node) for node in (*running.prefill, *running.decode)]
        for maker, taker in zip(running.prefill, running.decode, strict=True):
            maker.fault, maker.first_token_delay_s, taker.fault = "", 0.05, "status"
        got = [await running.complete() for _ in range(5)]
        opened = [await openings(running, node) for node in running.prefill]

    assert after_leaving == [0, 0, 0, 0]
    assert {each.status_code for each in got} <= {500, 503}
    assert opened == [0, 0]


async def test_a_restarted_node_is_no_longer_isolated() -> None:
    """Another process is behind the address."""
    async with cluster(decode=2, breaker_failures=1, breaker_open_s=NEVER_S) as running:
        bad = running.decode[0]
        bad.fault = "status"
        await isolate(running, bad)
        bad.fault = ""
        bad.change(incarnation="2")
        await running.until_state(bad, "ready")


@pytest.mark.parametrize(
    ("role", "url", "status"),
    [("prefill", "https://nowhere/a.png", 500), ("decode", "data:image/png,not-base64", 501)],
)
async def test_an_image_that_cannot_be_had_is_held_against_no_node(role: str, url: str, status: int) -> None:
    """A node answers so where an address does not, or a URL is of a kind that it does not know: it is the client's."""
    image = {"type": "image_url", "image_url": {"url": url}}
    async with cluster(prefill=2, decode=2, breaker_failures=1) as running:
        for node in running.prefill if role == "prefill" else running.decode:
            node.fault, node.status = "status", status
        got = [await running.chat(messages=[{"role": "user", "content": [image]}]) for _ in range(4)]
        opened = [await openings(running, node) for node in (*running.prefill, *running.decode)]

    assert {each.status_code for each in got} <= {200, status}
    assert opened == [0, 0, 0, 0]
