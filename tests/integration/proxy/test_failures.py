"""The failure table of the peers, row by row: right status, OpenAI's shape, no silent truncation, both nodes told."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from baton.contracts.http import error_body
from baton.contracts.kv_transfer import FIELD
from tests.support.cluster import Cluster, cluster, until_true
from tests.support.fake_answers import answer, events
from tests.support.fake_vllm import Fault

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
PATH = "/v1/completions"


def expected(*, stream: bool) -> bytes:
    """Return the answer as a healthy decode node sends it."""
    return b"".join(events(PATH, 3)) if stream else answer(PATH, 3)


def assert_error(got: httpx.Response, status: int) -> None:
    assert got.status_code == status, got.text
    assert got.headers["content-type"].startswith("application/json")
    assert set(got.json()["error"]) == {"message", "type", "param", "code"}
    assert "127.0.0.1" not in got.text


async def assert_nothing_left(running: Cluster) -> None:
    """Check that no node still works on anything, and that the proxy counts nothing as in flight."""

    async def idle() -> bool:
        nodes = (await running.http.get("/ready")).json()["nodes"]
        return all(node["requests"] == 0 for node in nodes)

    await until_true(idle)
    seen = [request for node in (*running.prefill, *running.decode) for request in node.seen]
    await until_true(lambda: all(request.finished or request.cancelled for request in seen))


@STREAM
async def test_no_connection_to_the_only_decode_node_is_502(*, stream: bool) -> None:
    """Before a probe notices it is a 502, afterwards a 503; the prefill leg is cancelled."""
    async with cluster(probe_interval_s=30.0) as running:
        running.prefill[0].first_token_delay_s = 20.0
        await running.decode[0].stop()
        first = await running.complete(stream=stream)
        await until_true(lambda: all(request.cancelled for request in running.prefill[0].seen))
        second = await running.complete(stream=stream)

    assert_error(first, 502)
    assert_error(second, 503)


async def test_a_foreign_error_is_put_into_openais_shape() -> None:
    """Server errors become 502, the client's keep their status; the body is always ours or OpenAI's."""
    errors: list[tuple[int, Any, int]] = [
        *((422, {"detail": []}, 422), (401, {}, 401)),
        *((500, b"oops", 502), (500, {"detail": "x"}, 502), (302, {}, 502)),
    ]
    async with cluster() as running:
        running.decode[0].fault = "status"
        for status, error, relayed in errors:
            running.decode[0].status, running.decode[0].error = status, error
            await running.until_ready()
            assert_error(await running.complete(), relayed)


@pytest.mark.parametrize("fault", ["cut", "cut in event", "silent end"])
async def test_a_stream_that_breaks_ends_with_an_error_event(fault: Fault) -> None:
    """What came is relayed once, then an error event, and no `[DONE]`: never a silent truncation."""
    async with cluster(decode=2) as running:
        for node in running.decode:
            node.fault, node.token_delay_s = fault, 0.02
        got = await running.complete(stream=True)
        requests = [len(node.seen) for node in running.decode]
        await assert_nothing_left(running)

    sent = b"".join(events(PATH, 3))
    relayed, _, error = got.content.rpartition(b"data: ")
    assert got.status_code == 200
    assert relayed
    assert sent.startswith(relayed if fault != "cut in event" else relayed.removesuffix(b"\n\n"))
    assert b"[DONE]" not in got.content
    assert httpx.Response(200, content=error).json()["error"]["type"] == "upstream_error"
    assert error.endswith(b"\n\n")
    assert sorted(requests) == [0, 1]  # no node was asked again


@pytest.mark.parametrize(("fault", "stream"), [("status", False), ("drop", True), ("gone", False)])
async def test_a_failed_prefill_leg_is_recomputed_on_the_decode_node(fault: str, *, stream: bool) -> None:
    """D, which waits for KV that will not come, is asked again without a transfer: two requests to D, one to P."""
    async with cluster(probe_interval_s=30.0) as running:
        if fault == "gone":
            await running.prefill[0].stop()
        else:
            running.prefill[0].fault = fault  # type: ignore[assignment]
        got = await running.complete(stream=stream)
        seen = running.decode[0].seen
        await assert_nothing_left(running)

    assert (got.status_code, got.content) == (200, expected(stream=stream))
    assert got.headers["x-baton-path"] == "recomputed"
    assert "the prefill node failed" in got.headers["x-baton-reason"]
    assert [(request.cancelled, FIELD in request.body) for request in seen] == [(True, True), (False, False)]


@pytest.mark.parametrize("fault", ["cut", "empty"])
async def test_a_prefill_node_whose_answer_is_not_whole(fault: Fault) -> None:
    """Half an answer is none: the prompt is computed elsewhere, if the decode node has not answered by then."""
    async with cluster() as running:
        running.prefill[0].fault = fault
        got = await running.complete()
        await assert_nothing_left(running)

    assert (got.status_code, got.content) == (200, expected(stream=False))


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_node_that_comes_back_after_an_outage(role: str) -> None:
    """It is used again without help, and its outage was not held against its partner."""
    async with cluster() as running:
        node, partner = running.decode[0], running.prefill[0]
        if role == "prefill":
            node, partner = partner, node
        await node.stop()
        during = await running.complete()
        nodes = (await running.http.get("/ready")).json()["nodes"]
        await node.start()
        await running.until_ready()
        after = await running.complete(stream=True)

    assert during.status_code == 200 if role == "prefill" else during.status_code in (502, 503)
    assert [each["state"] for each in nodes if each["url"] == partner.url] == ["ready"]
    assert (after.status_code, after.content) == (200, expected(stream=True))
    assert after.headers["x-baton-path"] == "disaggregated"


async def test_a_4xx_of_both_nodes_is_the_decode_nodes() -> None:
    """Both see the same mistake; D's words count."""
    async with cluster() as running:
        for node, message in ((running.prefill[0], "from P"), (running.decode[0], "from D")):
            node.fault, node.status, node.error = "status", 400, error_body(message, code=400)
        got = await running.complete()

    assert_error(got, 400)
    assert got.json()["error"]["message"] == "from D"


async def test_a_4xx_of_the_prefill_node_alone_does_not_leave_the_decode_node_waiting() -> None:
    """D does not mind the request, so D computes it, after a moment and not after the deadline."""
    async with cluster() as running:
        running.prefill[0].fault, running.prefill[0].status = "status", 404
        began_s = time.monotonic()
        got = await running.complete()

    assert (got.status_code, got.headers["x-baton-path"]) == (200, "recomputed")
    assert time.monotonic() - began_s < 10
    assert "404" in got.headers["x-baton-reason"]


async def test_a_prefill_node_that_fails_after_the_first_byte_does_not_matter() -> None:
    """D has the KV; what happens to P's answer is of no consequence."""
    async with cluster() as running:
        running.prefill[0].token_delay_s = 0.2  # P's answer comes late …
        running.decode[0].token_delay_s = 0.1
        request = asyncio.create_task(running.complete(stream=True))
        await until_true(lambda: running.decode[0].seen)
        await asyncio.sleep(0.15)
        await running.prefill[0].stop()  # … and then not at all
        got = await request

    assert got.content == expected(stream=True)
    assert got.headers["x-baton-path"] == "disaggregated"


async def test_the_deadline_is_504_before_the_head_and_an_error_event_after_it() -> None:
    """A request that hangs ends in the shape that its client expects."""
    async with cluster(request_timeout_s=1.5) as running:
        running.decode[0].first_token_delay_s = 20.0
        before = await running.complete(stream=True)
        running.decode[0].first_token_delay_s = 0.0
        running.decode[0].token_delay_s = 1.0
        after = await running.complete(stream=True)
        await assert_nothing_left(running)

    assert_error(before, 504)
    assert after.status_code == 200
    assert b'"type":"timeout_error"' in after.content.rpartition(b"data: ")[2]
    assert b"[DONE]" not in after.content
