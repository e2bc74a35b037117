"""OpenTelemetry on the real stack: one trace holds the proxy's spans and those of vLLM on both nodes."""

from collections.abc import Iterator

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, PATH_HEADER
from tests.e2e.stack import FLOAT32, Server, Stack
from tests.support.otlp_receiver import Receiver, Span, receiver
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(300)]

ENGINES: dict[str, str | None] = {
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",  # vLLM's default is gRPC
    "OTEL_BSP_SCHEDULE_DELAY": "200",  # ms; 5 s by default
}
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PATIENCE_S = 60.0
PROMPT = "The harbour of Port Amber lies at the mouth of the river, and every evening the boats come home."


@pytest.fixture
def collector() -> Iterator[Receiver]:
    """Where all three send their spans."""
    with receiver() as received:
        yield received


@pytest.fixture
def proxy(stack: Stack, collector: Receiver) -> Server:
    """A proxy in front of one prefill and one decode node, all traced."""
    flags = (*FLOAT32, "--otlp-traces-endpoint", f"{collector.url}/v1/traces")
    nodes = [stack.node(role, *flags, name=f"traced {role}", env=ENGINES) for role in ("prefill", "decode")]
    return stack.proxy(nodes[:1], nodes[1:], "--otlp-endpoint", collector.url, name="traced proxy")


def ask(stack: Stack, proxy: Server, headers: dict[str, str]) -> None:
    """Complete a prompt on both nodes."""
    body = {"model": stack.model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "stream": True}
    got = httpx.post(f"{proxy.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE_S)
    assert got.headers[PATH_HEADER] == DISAGGREGATED


def engines(collector: Receiver) -> list[Span]:
    """VLLM's spans of requests, once both are there."""
    eventually(
        lambda: len(collector.named("llm_request")) >= 2 and collector.named("POST /v1/completions"),
        PATIENCE_S,
        found=lambda: [span.name for span in collector.spans],
    )
    return collector.named("llm_request")


def test_vllms_spans_lie_below_the_proxys_legs(stack: Stack, proxy: Server, collector: Receiver) -> None:
    """A client's trace goes through all three; a request without a trace leaves no span anywhere."""
    ask(stack, proxy, {})
    ask(stack, proxy, {"traceparent": f"00-{TRACE}-{SPAN}-01", "x-request-id": "traced"})
    found = engines(collector)

    [root] = collector.named("POST /v1/completions")
    legs = {name: collector.named(name)[0] for name in ("prefill leg", "decode leg")}
    assert (root.trace_id, root.parent_id) == (TRACE, SPAN)
    assert {leg.parent_id for leg in legs.values()} == {root.span_id}
    assert {span.trace_id for span in found} == {TRACE}
    assert sorted(span.parent_id for span in found) == sorted(leg.span_id for leg in legs.values())
    tokens = {span.parent_id: span.attributes["gen_ai.usage.completion_tokens"] for span in found}
    assert (tokens[legs["prefill leg"].span_id], tokens[legs["decode leg"].span_id]) == (1, 4)
    assert not any(PROMPT[:11].encode() in body for body in collector.bodies)
