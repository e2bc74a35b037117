"""Traces of requests over fake nodes, as a collector gets them."""

from collections.abc import Iterator

import pytest

from tests.integration.proxy.test_cancels import ask as leaver
from tests.integration.proxy.test_resume import RANDOM, ask, breaking
from tests.support.cluster import COMPLETION, Cluster, cluster, until_true
from tests.support.otlp_receiver import Receiver, Span, receiver

ROOT = "POST /v1/completions"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PATIENCE_S = 30.0


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiver() as received:
        yield received


async def until_complete(collector: Receiver, spans: int) -> None:
    await until_true(lambda: len(collector.spans) >= spans, timeout_s=PATIENCE_S)


def children(collector: Receiver, of: Span) -> dict[str, list[Span]]:
    """The spans right under one, by name."""
    found: dict[str, list[Span]] = {}
    for span in collector.spans:
        if span.parent_id == of.span_id:
            found.setdefault(span.name, []).append(span)
    return found


def parents_sent(running: Cluster) -> list[tuple[str, str, str]]:
    """Trace, span and flags that the first prefill and the first decode leg brought."""
    said = [node.seen[0].headers["traceparent"].split("-") for node in (running.prefill[0], running.decode[0])]
    return [(trace, span, flags) for _, trace, span, flags in said]


async def test_a_traced_request_has_spans_that_the_nodes_can_join(collector: Receiver) -> None:
    """The request, its wait and both legs; each node is told the span of its leg."""
    async with cluster(otlp_endpoint=collector.url, trace_share=1.0) as running:
        await running.http.post(
            "/v1/completions", json={**COMPLETION, "stream": True}, headers={"x-request-id": "mine"}
        )
        await until_complete(collector, 4)
        sent = parents_sent(running)
        urls = [running.prefill[0].url, running.decode[0].url]

    [root] = collector.named(ROOT)
    below = children(collector, root)
    legs = [below["prefill leg"][0], below["decode leg"][0]]
    assert {name: len(spans) for name, spans in below.items()} == {"admission": 1, "prefill leg": 1, "decode leg": 1}
    assert {span.service for span in collector.spans} == {"baton-proxy"}
    assert sent == [(root.trace_id, leg.span_id, "01") for leg in legs]
    assert [leg.attributes for leg in legs] == [
        {"baton.role": role, "baton.node": url} for role, url in zip(("prefill", "decode"), urls, strict=True)
    ]
    assert [[name for name, _ in leg.events] for leg in legs] == [[], ["first bytes"]]
    told = root.attributes
    assert told.pop("baton.sent_bytes") > 0
    assert told == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "baton.request_id": "mine",
        "baton.path": "disaggregated",
        "baton.attempts": 1,
    }
    assert all(root.began_ns <= span.began_ns <= span.ended_ns for span in legs)
    assert legs[1].ended_ns <= root.ended_ns  # the prefill node's answer may be the last to come
    assert not any(span.problem for span in collector.spans)


async def test_a_clients_trace_goes_on(collector: Receiver) -> None:
    """The proxy's span has the client's as parent, and the nodes are in the same trace, although the share is 0."""
    async with cluster(otlp_endpoint=collector.url) as running:
        headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}
        await running.http.post("/v1/completions", json=COMPLETION, headers=headers)
        await until_complete(collector, 4)
        sent = parents_sent(running)
        states = [node.seen[0].headers["tracestate"] for node in (running.prefill[0], running.decode[0])]

    [root] = collector.named(ROOT)
    assert (root.trace_id, root.parent_id) == (TRACE, SPAN)
    assert {trace for trace, _, _ in sent} == {TRACE}
    assert {span for _, span, _ in sent}.isdisjoint({SPAN, root.span_id})
    assert states == ["a=1", "a=1"]


async def test_a_retry_is_an_event_and_a_leg_of_its_own(collector: Receiver) -> None:
    """The leg that failed says how."""
    async with cluster(decode=2, otlp_endpoint=collector.url, trace_share=1.0, breaker_failures=99) as running:
        running.decode[0].fault = "status"
        while not running.decode[0].seen:
            await running.complete()
        urls = [node.url for node in running.decode]
        await until_true(lambda: any(root.events for root in collector.named(ROOT)), timeout_s=PATIENCE_S)

    [root] = [root for root in collector.named(ROOT) if root.events]
    assert [(name, fields["leg"]) for name, fields in root.events] == [("retry", "decode")]
    legs = children(collector, root)["decode leg"]
    assert [(leg.attributes["baton.node"], leg.problem) for leg in legs] == [(urls[0], "status"), (urls[1], "")]
    assert root.attributes["baton.attempts"] == 2


async def test_a_resumed_stream_is_one_trace(collector: Receiver) -> None:
    """It has an event, and a leg that broke."""
    async with breaking(otlp_endpoint=collector.url, trace_share=1.0) as running:
        await ask(running, "completion", **RANDOM)
        await until_true(lambda: any(root.events for root in collector.named(ROOT)), timeout_s=PATIENCE_S)

    [root] = [root for root in collector.named(ROOT) if root.events]
    assert [(name, fields["kind"]) for name, fields in root.events] == [("resume", "disconnect")]
    legs = sorted(children(collector, root)["decode leg"], key=lambda leg: leg.began_ns)
    assert [leg.problem for leg in legs] == ["disconnect", ""]


async def test_a_client_that_leaves_cuts_the_legs(collector: Receiver) -> None:
    """Their spans end all the same, and the request's says that it has no status."""
    async with cluster(otlp_endpoint=collector.url, trace_share=1.0) as running:
        running.prefill[0].first_token_delay_s = 20.0
        _, writer = await leaver(running, stream=True)
        await until_true(lambda: running.prefill[0].seen and running.decode[0].seen)
        writer.close()
        await until_complete(collector, 4)
        await writer.wait_closed()

    [root] = collector.named(ROOT)
    below = children(collector, root)
    assert [below[name][0].problem for name in ("prefill leg", "decode leg")] == ["cut", "cut"]
    assert "http.response.status_code" not in root.attributes


async def test_a_collector_that_refuses_costs_spans_and_no_request(collector: Receiver) -> None:
    collector.status = 400
    async with cluster(otlp_endpoint=collector.url, trace_share=1.0) as running:
        got = await running.complete()
        await running.until_metric('baton_trace_spans_total{result="failed"}', 4)

    assert got.status_code == 200


async def test_a_passed_route_is_traced_too(collector: Receiver) -> None:
    """Its one leg is the node's."""
    async with cluster(otlp_endpoint=collector.url, trace_share=1.0) as running:
        node = running.decode[0]
        node.passed["POST", "/tokenize"] = (200, b"application/json", b"{}")
        await running.http.post("/tokenize", json={"prompt": "x"})
        await until_true(lambda: collector.named("POST /tokenize"), timeout_s=PATIENCE_S)
        [(_, _, _, headers, _)] = [*running.prefill[0].was_passed, *node.was_passed]

    [root] = collector.named("POST /tokenize")
    [leg] = [span for span in collector.spans if span.parent_id == root.span_id and span.name.endswith(" leg")]
    assert headers["traceparent"] == f"00-{root.trace_id}-{leg.span_id}-01"
