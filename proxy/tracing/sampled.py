"""A request that is traced: a span for it in the proxy, children for its wait and its legs.

The nodes get the span of their leg as parent, so that vLLM's own spans join the trace. No span holds a prompt or a key.
"""

import time
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)

from baton.proxy.http.headers import RawHeaders
from baton.proxy.tracing import traceparent
from baton.proxy.tracing.traceparent import Parent
from baton.proxy.tracing.traces import Leg, Trace

NANOSECONDS: Final = 1_000_000_000


class SampledLeg(Leg):
    """One request to one node, as spans."""

    __slots__ = ("_span", "line")

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        state = context.trace_state.to_header()
        self.line = traceparent.line(context.trace_id, context.span_id, sampled=True)
        if state:
            self.line += b"tracestate: %b\r\n" % state.encode("latin-1")

    def event(self, name: str) -> None:
        self._span.add_event(name)

    def end(self, problem: str = "") -> None:
        if not self._span.is_recording():
            return
        if problem:
            self._span.set_status(StatusCode.ERROR, problem)
        self._span.end()


class SampledTrace(Trace):
    """One client's request, as spans."""

    __slots__ = ("_children", "_span", "_tracer", "trace_id")
    line = b""  # each leg has its own

    def __init__(self, tracer: Tracer, method: str, route: str, request_id: str, parent: Context) -> None:
        self._tracer = tracer
        about = {"http.request.method": method, "http.route": route, "baton.request_id": request_id}
        self._span = tracer.start_span(f"{method} {route}", parent, SpanKind.SERVER, about)
        self._children = set_span_in_context(self._span, Context())
        self.trace_id = f"{self._span.get_span_context().trace_id:032x}"

    def waited(self, wait_s: float) -> None:
        now_ns = time.time_ns()
        began_ns = now_ns - int(wait_s * NANOSECONDS)
        self._tracer.start_span("admission", self._children, start_time=began_ns).end(now_ns)

    def leg(self, role: str, url: str) -> Leg:
        about = {"baton.role": role, "baton.node": url}
        return SampledLeg(self._tracer.start_span(f"{role} leg", self._children, SpanKind.CLIENT, about))

    def event(self, name: str, **fields: str) -> None:
        self._span.add_event(name, fields)

    def end(self, status: int, *, failed: bool, **fields: str | int) -> None:
        self._span.set_attributes({f"baton.{name}": value for name, value in fields.items() if value != ""})
        if status:
            self._span.set_attribute("http.response.status_code", status)
        if failed:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def under(parent: Parent | None, headers: RawHeaders) -> Context:
    """Return the context of a request that a client made in a span of its own, or in none."""
    if parent is None:
        return Context()
    state = TraceState.from_header(traceparent.state_of(headers))
    context = SpanContext(
        parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED), trace_state=state
    )
    return set_span_in_context(NonRecordingSpan(context), Context())
