"""A collector of traces: OTLP over HTTP on a loopback port, every span kept."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    began_ns: int
    ended_ns: int
    problem: str  # "": it is not marked as an error


@dataclass(slots=True)
class Receiver:
    url: str = ""
    spans: list[Span] = field(default_factory=list)
    status: int = 200  # of the next answers
    bodies: list[bytes] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> int:
        """Keep the spans of one request; return the status of its answer."""
        if path.partition("?")[0] != "/v1/traces":
            return 404
        self.bodies.append(body)
        if self.status == 200:
            self.spans += _spans(ExportTraceServiceRequest.FromString(body))
        return self.status


@contextmanager
def receiver() -> Iterator[Receiver]:
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(received.take(self.path, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        received.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


def _spans(request: Any) -> Iterator[Span]:
    for resource in request.resource_spans:
        service = _fields(resource.resource.attributes).get("service.name", "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    service=service,
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    attributes=_fields(span.attributes),
                    events=[(event.name, _fields(event.attributes)) for event in span.events],
                    began_ns=span.start_time_unix_nano,
                    ended_ns=span.end_time_unix_nano,
                    problem=(span.status.message or "error")
                    if span.status.code == span.status.STATUS_CODE_ERROR
                    else "",
                )


def _fields(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
