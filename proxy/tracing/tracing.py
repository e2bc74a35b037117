"""Which requests are traced: all whose client traces them, and a share of the others. Off, nothing is even looked at."""

import random
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.http.headers import RawHeaders
from baton.proxy.tracing.traceparent import line, parent_of
from baton.proxy.tracing.traces import UNTRACED, Trace, UnsampledTrace

EXTRA: Final = "baton-serve[tracing]"


class TracingError(Exception):
    """Tracing cannot be configured like this; the message says why."""


class Tracing(Collector):
    """Traces nothing."""

    def begin(self, headers: RawHeaders, method: str, route: str, request_id: str) -> Trace:
        """Return the trace of a request that has just arrived."""
        del headers, method, route, request_id
        return UNTRACED

    def start(self) -> None:
        """Begin to export."""

    def stop(self) -> None:
        """Export what is left, for a moment. Blocks."""

    def collect(self) -> list[Metric]:
        return []


class SamplingTracer(Tracing):
    """Traces a share of the requests."""

    def __init__(self, share: float, endpoint: str) -> None:
        """Raise ImportError if OpenTelemetry is not there."""
        from baton.proxy.tracing import exporter, sampled

        self._share = share
        self._exporter = exporter.Exporter(endpoint)
        self._tracer = self._exporter.tracer
        self._make, self._under = sampled.SampledTrace, sampled.under

    def begin(self, headers: RawHeaders, method: str, route: str, request_id: str) -> Trace:
        parent = parent_of(headers)
        if parent is None:
            if random.random() >= self._share:  # noqa: S311  # nothing hangs on it
                ids = random.getrandbits(192) | 1 << 64 | 1  # neither of the two is 0
                return UnsampledTrace(line(ids >> 64, ids & (1 << 64) - 1, sampled=False))
        elif not parent.sampled:
            return UNTRACED
        return self._make(self._tracer, method, route, request_id, self._under(parent, headers))

    def start(self) -> None:
        self._exporter.start()

    def stop(self) -> None:
        self._exporter.stop()

    def collect(self) -> list[Metric]:
        found = CounterMetricFamily("baton_trace_spans", "Spans, by what became of them", labels=("result",))
        for result, spans in self._exporter.counts().items():
            found.add_metric((result,), spans)
        return [found]


def tracing_of(config: ProxyConfig) -> Tracing:
    """Return what a configuration wants. Raises `TracingError`: it wants what it cannot have."""
    if not config.otlp_endpoint:
        if config.trace_share:
            raise TracingError("proxy.trace_share is set, and proxy.otlp_endpoint does not say where traces go")
        return Tracing()
    if not config.otlp_endpoint.startswith(("http://", "https://")):
        raise TracingError("proxy.otlp_endpoint is no URL of a collector, such as http://collector:4318")
    try:
        return SamplingTracer(config.trace_share, config.otlp_endpoint)
    except ImportError as exc:
        raise TracingError(f"proxy.otlp_endpoint is set, and {exc.name} is missing: pip install '{EXTRA}'") from exc
