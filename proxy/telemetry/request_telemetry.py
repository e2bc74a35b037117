"""What is noted of a request when it ends: series, its span, a line in the access log."""

import time
from collections.abc import Callable

from starlette.types import Scope

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.admission.request_terms import tenant_of
from baton.proxy.request.caller import caller_of
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.telemetry.access_log import AccessLog, Entry
from baton.proxy.telemetry.metrics import Metrics
from baton.proxy.tracing.tracing import Tracing


class RequestTelemetry:
    """What all requests share."""

    def __init__(self, config: ProxyConfig, metrics: Metrics, tracing: Tracing) -> None:
        self.metrics = metrics
        self.tracing = tracing
        self.client: Callable[..., ClientResponse] = ClientResponse  # what makes the sending half of an exchange
        self.access_log = AccessLog(config.access_log, config.log_format)
        self._tenant_header = config.tenant_header.lower()
        metrics.registry.register(tracing)
        metrics.registry.register(self.access_log)

    def start(self) -> None:
        """Begin to export and to write."""
        self.tracing.start()
        self.access_log.start()

    def stop(self) -> None:
        """Export and write what is left, for a moment. Blocks."""
        self.access_log.stop()
        self.tracing.stop()

    def exchange(self, route: str, scope: Scope, client: ClientResponse) -> "Exchange":
        """Return what counts a request during a block."""
        return Exchange(self, route, scope, client)

    def ended(self, route: str, scope: Scope, client: ClientResponse) -> None:
        """Note a request's end."""
        duration_s = time.perf_counter() - client.arrived_s
        self.metrics.ended(route, client, duration_s)
        status = int(client.status)
        client.trace.end(
            status,
            failed=client.broken or status >= 500,
            path=client.path,
            reason=client.reason,
            attempts=client.attempts,
            sent_bytes=client.sent_bytes,
        )
        if self.access_log.which != "off" and self.access_log.wants(status, broken=client.broken):
            self.access_log.add(self._entry(route, scope, client, duration_s))

    def _entry(self, route: str, scope: Scope, client: ClientResponse, duration_s: float) -> Entry:
        caller = caller_of(scope)
        name = caller.name if caller is not None else ""
        return Entry(
            time_s=time.time(),
            request_id=client.request_id,
            tenant=tenant_of(scope["headers"], self._tenant_header, name),
            route=route,
            path=client.path,
            reason=client.reason,
            status=int(client.status),
            broken=client.broken,
            left=client.left,
            prefill=client.prefill_url,
            decode=client.decode_url,
            attempts=client.attempts,
            wait_s=client.waited_s,
            ttft_s=client.ttft_s,
            duration_s=duration_s,
            sent_bytes=client.sent_bytes,
            trace_id=client.trace.trace_id,
        )


class Exchange:
    """One request, from its head to its end."""

    __slots__ = ("_client", "_route", "_scope", "_telemetry")

    def __init__(self, telemetry: RequestTelemetry, route: str, scope: Scope, client: ClientResponse) -> None:
        self._telemetry = telemetry
        self._route = route
        self._scope = scope
        self._client = client

    def __enter__(self) -> None:
        """Begin."""
        self._telemetry.metrics.began()

    def __exit__(self, *_: object) -> None:
        """End, however."""
        self._telemetry.ended(self._route, self._scope, self._client)
