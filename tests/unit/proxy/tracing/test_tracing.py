"""Which requests are traced, without a collector."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.tracing.traceparent import parent_of
from baton.proxy.tracing.traces import UNTRACED, Trace
from baton.proxy.tracing.tracing import Tracing, TracingError, tracing_of

ENDPOINT = "http://127.0.0.1:9"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def client_says(sampled: bool) -> list[tuple[bytes, bytes]]:
    return [(b"traceparent", f"00-{TRACE}-{SPAN}-0{int(sampled)}".encode()), (b"tracestate", b"a=1,b=2")]


@pytest.fixture
def made() -> Iterator[list[Tracing]]:
    found: list[Tracing] = []
    yield found
    for each in found:
        each.start()
        each.stop()


def begin(made: list[Tracing], share: float, headers: list[tuple[bytes, bytes]]) -> Trace:
    tracing = tracing_of(ProxyConfig(otlp_endpoint=ENDPOINT, trace_share=share))
    made.append(tracing)
    return tracing.begin(headers, "POST", "/v1/completions", "r1")


def test_off_a_clients_headers_pass() -> None:
    trace = tracing_of(ProxyConfig()).begin(client_says(sampled=True), "POST", "/v1/completions", "r1")

    assert trace is UNTRACED
    assert trace.line is None
    assert trace.leg("decode", "http://d").line == b""


def test_a_client_that_is_not_sampled_is_followed_too(made: list[Tracing]) -> None:
    """Whatever the share is; its own headers tell the nodes."""
    assert begin(made, 1.0, client_says(sampled=False)) is UNTRACED


def test_the_share_counts_where_the_client_says_nothing(made: list[Tracing]) -> None:
    """A request that is not traced says so to the nodes, which would begin a trace of their own."""
    traced, untold = begin(made, 1.0, []), begin(made, 0.0, [])

    assert len(traced.trace_id) == 32
    assert untold.trace_id == ""
    assert untold.line is not None
    name, _, value = untold.line.strip().partition(b": ")
    parent = parent_of([(name, value)])
    assert parent is not None
    assert not parent.sampled
    assert untold.leg("decode", "http://d").line == b""


def test_a_header_that_cannot_be_parsed_is_as_none(made: list[Tracing]) -> None:
    """It is replaced, since vLLM would not understand it either."""
    assert begin(made, 0.0, [(b"traceparent", b"nonsense")]).line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trace_share": 0.1}, "proxy.trace_share is set, and proxy.otlp_endpoint"),
        ({"otlp_endpoint": "collector:4317"}, "proxy.otlp_endpoint is no URL"),
    ],
)
def test_what_cannot_be_traced_is_refused(settings: dict[str, Any], words: str) -> None:
    """At the start, and not span by span; the endpoint is not repeated, since it may hold a key."""
    with pytest.raises(TracingError) as caught:
        tracing_of(ProxyConfig(**settings))

    assert words in str(caught.value)
    assert "4317" not in str(caught.value)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def test_without_the_packages_the_sentence_says_what_to_install() -> None:
    said = run(f"""
import sys
sys.modules["opentelemetry"] = None
from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.tracing.tracing import TracingError, tracing_of
try:
    tracing_of(ProxyConfig(otlp_endpoint="{ENDPOINT}"))
except TracingError as exc:
    print(exc)
""")

    assert said.startswith("proxy.otlp_endpoint is set, and opentelemetry")
    assert said.endswith("is missing: pip install 'baton-serve[tracing]'")


def test_off_nothing_of_opentelemetry_is_imported() -> None:
    """The proxy's image need not have it."""
    assert run("import sys, baton.proxy.app; print('opentelemetry' in str(list(sys.modules)))") == "False"
