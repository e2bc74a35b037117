"""The failure table of the peers, row by row: right status, OpenAI's shape, no silent truncation, both nodes told."""

from typing import Any

import httpx
import pytest

from baton.contracts.http import error_body
from baton.contracts.kv_transfer import FIELD
from tests.support.cluster import Cluster, cluster, until, until_true
from tests.support.fake_answers import answer, events
from tests.support.fake_vllm import Fault

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
    await until(running.nodes, lambda nodes: not any(node["requests"] for node in nodes))
    seen = [request for node in (*running.prefill, *running.decode) for request in node.seen]
    await until_true(lambda: all(request.finished or request.cancelled for request in seen))


async def test_no_connection_to_the_only_decode_node_is_502() -> None:
    """Before a probe notices it is a 502, afterwards a 503; the prefill leg is cancelled."""
    async with cluster(probe_interval_s=30.0) as running:
        running.prefill[0].first_token_delay_s = 20.0
        await running.decode[0].stop()
        first = await running.complete(stream=True)
        await until_true(lambda: all(request.cancelled for request in running.prefill[0].seen))
        second = await running.complete()

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


@pytest.mark.parametrize("fault", ["cut in event", "silent end"])
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


@pytest.mark.parametrize(("fault", "stream"), [("drop", True), ("gone", False)])
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


async def test_a_prefill_node_whose_answer_is_not_whole() -> None:
    """Half an answer is none: the prompt is computed elsewhere, if the decode node has not answered by then."""
    faults: list[Fault] = ["cut", "empty"]
    async with cluster() as running:
        for fault in faults:
            await running.until_ready()
            running.prefill[0].fault = fault
            got = await running.complete()
            assert (got.status_code, got.content) == (200, expected(stream=False))
        await assert_nothing_left(running)


async def test_a_prefill_node_that_comes_back_after_an_outage() -> None:
    """It is used again without help, and its outage was not held against its partner."""
    async with cluster() as running:
        await running.prefill[0].stop()
        during, partner = await running.complete(), await running.state_of(running.decode[0])
        await running.prefill[0].start()
        await running.until_ready()
        after = await running.complete(stream=True)

    assert (during.status_code, partner["state"]) == (200, "ready")
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
        got = await running.complete()

    assert (got.status_code, got.headers["x-baton-path"]) == (200, "recomputed")
    assert "404" in got.headers["x-baton-reason"]


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
