"""Spans on their way to a collector: OTLP over HTTP, in a thread, behind a bounded queue whose drops are counted."""

import logging
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from baton.proxy.tracing.background import Background

logger = logging.getLogger(__name__)

MOST: Final = 4096  # spans that wait
BATCH: Final = 32  # encoding more would hold the interpreter, and with it all streams, for more than a few milliseconds
GATHER_S: Final = 0.5
POST_TIMEOUT_S: Final = 5.0
STOP_S: Final = 1.0
_PATH: Final = "/v1/traces"
_SILENCE_S: Final = 60.0  # between two log lines about a collector that does not take them
_SERVICE: Final = "baton-proxy"


class Exporter(SpanProcessor):
    """Makes spans, and sends those that have ended."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is the collector's URL; without a path it is the usual one."""
        _hush()
        self._sender: SpanExporter = OTLPSpanExporter(endpoint=_with_path(endpoint), timeout=POST_TIMEOUT_S)
        self._queue: Background[ReadableSpan] = Background(
            "spans", self._send, most=MOST, batch=BATCH, gather_s=GATHER_S
        )
        self._said_s = -_SILENCE_S
        provider = TracerProvider(
            sampler=ALWAYS_ON,  # what is asked of it has been chosen
            resource=Resource.create({SERVICE_NAME: _SERVICE}),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self)
        self.tracer = provider.get_tracer("baton.proxy")

    def start(self) -> None:
        self._queue.start()

    def stop(self) -> None:
        """Send what is left, for a moment; idempotent."""
        self._queue.stop(STOP_S)
        self._sender.shutdown()

    def on_end(self, span: ReadableSpan) -> None:
        self._queue.offer(span)

    def counts(self) -> dict[str, int]:
        """Return how many spans were sent, came to nothing because too many waited, or were not taken."""
        queue = self._queue
        return {"exported": queue.done, "dropped": queue.dropped, "failed": queue.failed}

    def _send(self, spans: Sequence[ReadableSpan]) -> bool:
        sent = self._sender.export(spans) is SpanExportResult.SUCCESS
        if not sent and time.monotonic() - self._said_s >= _SILENCE_S:
            self._said_s = time.monotonic()
            logger.warning("spans could not be exported", extra={"spans": len(spans)})
        return sent


def _with_path(endpoint: str) -> str:
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _PATH


def _hush() -> None:
    """OpenTelemetry writes a line for each try, and its client one with the whole URL; ours is one a minute."""
    for name in ("opentelemetry", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
