"""Failures before the first byte: which node is asked next, what is kept, and when no node is asked."""

from typing import Any

import pytest

from baton.contracts.http import error_body
from baton.contracts.kv_transfer import FIELD, KEY
from tests.integration.proxy.test_failures import assert_error, assert_nothing_left, expected
from tests.support.cluster import cluster
from tests.support.fake_vllm import FakeVllm, Fault
from tests.support.strict_node import Seen


def transfers(node: FakeVllm) -> list[str]:
    """The transfer ids that a node was asked for; "" where it was to compute the prompt itself."""
    return [transfer(request) for request in node.seen]


def transfer(request: Seen) -> str:
    """The transfer id of one request, whether the node came to look at it or not."""
    return request.body[FIELD][KEY]["id"] if FIELD in request.body else ""


@pytest.mark.parametrize(("fault", "stream"), [("status", True), ("gone", False)])
async def test_a_failed_prefill_leg_is_tried_on_another_prefill_node(fault: str, *, stream: bool) -> None:
    """The decode node stays the same, and gets a new transfer; the failed prefill node is told to forget the old one."""
    async with cluster(prefill=2, decode=2, probe_interval_s=30.0) as running:
        if fault == "gone":
            await running.prefill[0].stop()
        else:
            running.prefill[0].fault = fault  # type: ignore[assignment]
        got = [await running.complete(stream=stream) for _ in range(4)]
        again = await running.metric('baton_retries_total{leg="prefill",next="another_node"}')
        await assert_nothing_left(running)

    assert {(each.status_code, each.content) for each in got} == {(200, expected(stream=stream))}
    assert {each.headers["x-baton-path"] for each in got} == {"disaggregated"}
    assert again >= 1
    used = [transfers(node) for node in running.decode]
    assert len({each for ids in used for each in ids}) == sum(map(len, used)) == 4 + again
    assert all(ids for ids in used)
    for node in running.decode:  # an abandoned attempt and its successor are on the same node
        assert [request.cancelled for request in node.seen if request.cancelled] == [
            True for before, after in zip(node.seen, node.seen[1:], strict=False) if before.cancelled and after.finished
        ]
    if fault == "status":
        told = {each for call in running.prefill[0].cancels for each in call}
        assert told == set(transfers(running.prefill[0]))


@pytest.mark.parametrize(
    ("fault", "stream"),
    [("drop", True), ("empty", False), ("cut", False), ("error first", True)],
)
async def test_a_failed_decode_leg_is_tried_on_another_with_the_same_prefill_node(
    fault: Fault, *, stream: bool
) -> None:
    """That prefill node has the prompt in its prefix cache."""
    async with cluster(prefill=3, decode=2) as running:
        running.decode[0].fault = fault
        got = [await running.complete(stream=stream) for _ in range(4)]
        again = await running.metric('baton_retries_total{leg="decode",next="another_node"}')
        metrics = (await running.http.get("/metrics")).text
        await assert_nothing_left(running)

    assert {(each.status_code, each.content) for each in got} == {(200, expected(stream=stream))}
    assert 'baton_leg_failures_total{kind="' in metrics
    assert again == len({request.headers["x-request-id"] for request in running.decode[0].seen}) > 0
    home = {each: node for node in running.prefill for each in transfers(node)}
    for first in running.decode[0].seen:
        (second,) = (
            each for each in running.decode[1].seen if each.headers["x-request-id"] == first.headers["x-request-id"]
        )
        assert transfer(first) != transfer(second)
        assert home.get(transfer(first)) in (home[transfer(second)], None)  # None: cancelled before it was read


async def test_only_a_clients_mistake_is_no_other_nodes_chance() -> None:
    """The one that was asked has the last word."""
    answers: list[tuple[Fault, int, int, int]] = [
        ("status", 400, 400, 1),
        ("error first", 400, 200, 1),  # a stream that begins with a 4xx is an answer
        # What vLLM says inside of a stream becomes the status while that is still possible.
        ("error first", 500, 500, 2),
        ("status", 408, 408, 2),  # a rate limit is no fault of the request; where all nodes say so, the client hears it
        ("status", 429, 429, 2),
    ]
    async with cluster(decode=2, breaker_failures=1000) as running:
        for fault, code, status, asked in answers:
            for node in running.decode:
                node.fault, node.status, node.error = fault, code, error_body("no", code=code)
                node.seen.clear()
            got = await running.complete(stream=fault == "error first")

            if status == 200:
                assert (got.status_code, b'"no"' in got.content) == (200, True)
            else:
                assert_error(got, status)
                assert got.json() == error_body("no", code=code)
            assert sum(len(node.seen) for node in running.decode) == asked


async def test_retries_end_with_a_requests_own_and_with_all_that_there_are() -> None:
    """With so many attempts each, a share of a half and one at the start, every second failure at least is made good; time adds a few."""
    settings: dict[str, Any] = {"max_attempts": 2, "retry_burst": 1, "retry_share": 0.5, "breaker_failures": 1000}
    async with cluster(decode=3, breaker_failure_share=1.0, **settings) as running:
        for node in running.decode:
            node.fault = "status"
        for _ in range(8):
            await running.complete()
            await running.until_ready()
        retried = await running.metric('baton_retries_total{leg="decode",next="another_node"}')
        by_reason = [
            await running.metric(f'baton_retries_denied_total{{leg="decode",reason="{reason}"}}')
            for reason in ("attempts", "budget")
        ]
        asked = sum(len(node.seen) for node in running.decode)

    assert retried >= 4
    assert asked == 8 + retried
    assert all(by_reason)
