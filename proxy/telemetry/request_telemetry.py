"""What is noted of a request when it ends: series, its span, a line in the access log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Scope

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.admission.request_terms import tenant_of
from baton.proxy.request.caller import caller_of
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.telemetry.access_log import AccessLog, Entry
from baton.proxy.telemetry.metrics import Metrics
from baton.proxy.tracing.tracing import Tracing


class RequestTelemetry:
    """Metrics, log and traces that all requests share."""

    def __init__(self, config: ProxyConfig, metrics: Metrics, tracing: Tracing) -> None:
        self.metrics = metrics
        self.tracing = tracing
        self.listeners: list[Callable[[RequestRecord], None]] = []  # told of each request that arrives
        self.access_log = AccessLog(config.access_log, config.log_format)
        self._tenant_header = config.tenant_header.lower()
        metrics.registry.register(tracing)
        metrics.registry.register(self.access_log)

    def start(self) -> None:
        self.tracing.start()
        self.access_log.start()

    def stop(self) -> None:
        """Export and write what is left, for a moment. Blocks."""
        self.access_log.stop()
        self.tracing.stop()

    def begin_record(self, scope: Scope, route: str, request_id: str) -> RequestRecord:
        record = RequestRecord(request_id, self.tracing.begin(scope["headers"], scope["method"], route, request_id))
        for listener in self.listeners:
            listener(record)
        return record

    @contextmanager
    def recording(self, route: str, scope: Scope, record: RequestRecord) -> Iterator[None]:
        """Count a request as in flight during a block, and note its end."""
        self.metrics.began()
        try:
            yield
        finally:
            self._end(route, scope, record)

    def _end(self, route: str, scope: Scope, record: RequestRecord) -> None:
        duration_s = time.perf_counter() - record.arrived_s
        self.metrics.ended(route, record, duration_s)
        status = int(record.status)
        record.trace.end(
            status,
            failed=record.broken or status >= 500,
            path=record.path,
            reason=record.reason,
            attempts=record.attempts,
            sent_bytes=record.sent_bytes,
        )
        if self.access_log.which != "off" and self.access_log.wants(status, broken=record.broken):
            self.access_log.add(self._entry(route, scope, record, duration_s))

    def _entry(self, route: str, scope: Scope, record: RequestRecord, duration_s: float) -> Entry:
        caller = caller_of(scope)
        name = caller.name if caller is not None else ""
        return Entry(
            time_s=time.time(),
            request_id=record.request_id,
            tenant=tenant_of(scope["headers"], self._tenant_header, name),
            route=route,
            path=record.path,
            reason=record.reason,
            status=int(record.status),
            broken=record.broken,
            left=record.left,
            prefill=record.prefill_url,
            decode=record.decode_url,
            attempts=record.attempts,
            wait_s=record.waited_s,
            ttft_s=record.ttft_s,
            duration_s=duration_s,
            sent_bytes=record.sent_bytes,
            trace_id=record.trace.trace_id,
        )
