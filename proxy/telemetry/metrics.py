"""What the proxy counts, in Prometheus' terms. Every instance has a registry of its own."""

from collections.abc import Iterable
from functools import cache, partial
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from baton.contracts.kv_transfer import Role
from baton.proxy.admission.concurrency_limiter import ConcurrencyLimiter
from baton.proxy.errors import FailureKind, Refusal
from baton.proxy.nodes.moves import Result
from baton.proxy.planning.plans import Plan
from baton.proxy.planning.retry_policy import RetryDenial
from baton.proxy.response.request_record import RequestRecord

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_LEFT: Final = "client_left"  # the status of a request whose client left before the response's head
_WAIT_BUCKETS_S: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TTFT_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_DURATION_BUCKETS_S: Final = (0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """All series of one proxy."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # where others add series of their own
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._requests = counter(
            "baton_requests",
            "Requests ended, by how the answer was made (empty: before that was decided) and by status",
            ("endpoint", "path", "status"),
        )
        self._first_byte = histogram(
            "baton_time_to_first_token_seconds",
            "From a streaming request's arrival to the first bytes of its answer",
            ("path",),
            buckets=_TTFT_BUCKETS_S,
        )
        self._second_gap = histogram(
            "baton_second_token_gap_seconds",
            "From a first token that came from the prefill node to what the decode node added",
            buckets=_TTFT_BUCKETS_S,
        )
        self._first_tokens = counter(
            "baton_first_tokens",
            "Disaggregated requests, by whether the first token was relayed from the prefill node, or why not",
            ("source",),
        )
        self._durations = histogram(
            "baton_request_seconds", "From a request's arrival to its end", ("path",), buckets=_DURATION_BUCKETS_S
        )
        self._in_flight = Gauge("baton_requests_in_flight", "Requests being served", registry=self.registry)
        self._broken = counter("baton_streams_broken", "Streams that ended with an error event")
        self._leg_failures = counter("baton_leg_failures", "Failed legs, by role and kind", ("role", "kind"))
        self._retries = counter(
            "baton_retries",
            "Attempts that followed a failed one of the same request, by the leg that failed and what was done",
            ("leg", "next"),
        )
        self._denied = counter(
            "baton_retries_denied",
            "Failed attempts that were not followed by one on another node, by the leg that failed",
            ("leg", "reason"),
        )
        self._resumed = counter(
            "baton_streams_resumed", "Streams that broke and went on, leg by leg, by how they broke", ("kind",)
        )
        self._not_resumed = counter(
            "baton_streams_not_resumed", "Streams that broke and did not go on, by reason", ("reason",)
        )
        self._moves = counter(
            "baton_streams_moved",
            "Answers that left a decode node that was drained or evacuated, by whether their KV went with them; failed: it could not be "
            "sent ahead, and they stayed for the time being",
            ("result",),
        )
        self._move_gaps = histogram(
            "baton_stream_move_gap_seconds",
            "Of a stream that left a drained or evacuated decode node: from the last that came from it to the first from another one",
            ("result",),
            buckets=_TTFT_BUCKETS_S,
        )
        self._returns = counter(
            "baton_answers_returned",
            "Answers whose KV was to go back to a prefill node; dropped: too many waited, or for too long",
            ("result",),
        )
        self._cancels = counter(
            "baton_transfer_cancels",
            "Transfers that no request needs any more, by whether the prefill node could be told",
            ("result",),
        )
        self._refusals = counter("baton_refusals", "Requests told to come again, by reason", ("reason",))
        self.client_dropped = counter("baton_clients_dropped", "Clients cut off because they read nothing").inc
        self.waited = histogram(
            "baton_admission_wait_seconds", "How long requests waited until they were let in", buckets=_WAIT_BUCKETS_S
        ).observe
        self._decisions = counter(
            "baton_decisions", "Plans, by how the prompt was to be computed and why", ("path", "reason")
        )
        # What every request counts: finding a series by its labels costs more than counting.
        self._requests_of = cache(self._requests.labels)
        self._first_byte_of = cache(self._first_byte.labels)
        self._first_tokens_of = cache(self._first_tokens.labels)
        self._duration_of = cache(self._durations.labels)
        self._decisions_of = cache(self._decisions.labels)

    def watch_gate(self, gate: ConcurrencyLimiter) -> None:
        inside = Gauge("baton_admission_inside", "Requests that were let in", registry=self.registry)
        waiting = Gauge("baton_admission_waiting", "Requests that wait to be let in", registry=self.registry)
        inside.set_function(lambda: gate.inside)
        waiting.set_function(lambda: gate.waiting)

    def refused(self, reason: Refusal) -> None:
        self._refusals.labels(reason).inc()

    def decided(self, plan: Plan) -> None:
        self._decisions_of(plan.path, plan.label).inc()

    def leg_failed(self, role: str, kind: FailureKind) -> None:
        self._leg_failures.labels(role, kind).inc()

    def retried(self, leg: Role, following: Literal["another_node", "recompute"]) -> None:
        self._retries.labels(leg, following).inc()

    def denied(self, leg: Role, reason: RetryDenial) -> None:
        self._denied.labels(leg, reason).inc()

    def resumed(self, kind: str) -> None:
        self._resumed.labels(kind).inc()

    def not_resumed(self, reason: str) -> None:
        self._not_resumed.labels(reason).inc()

    def moved(self, result: Result) -> None:
        self._moves.labels(result).inc()

    def move_gap(self, result: Result, gap_s: float) -> None:
        self._move_gaps.labels(result).observe(gap_s)

    def returned(self, result: Literal["returned", "failed", "dropped"]) -> None:
        self._returns.labels(result).inc()

    def cancelled(self, result: Literal["told", "lost"], transfers: int) -> None:
        """Count transfers whose prefill node was told that no request needs them, or could not be."""
        self._cancels.labels(result).inc(transfers)

    def began(self) -> None:
        self._in_flight.inc()

    def ended(self, endpoint: str, record: RequestRecord, duration_s: float) -> None:
        self._in_flight.dec()
        status = str(int(record.status)) if record.status else CLIENT_LEFT
        self._requests_of(endpoint, record.path, status).inc()
        self._duration_of(record.path).observe(duration_s)
        if record.ttft_s is not None:
            self._first_byte_of(record.path).observe(record.ttft_s)
        if record.first_token:
            self._first_tokens_of(record.first_token).inc()
        if record.second_token_gap_s is not None:
            self._second_gap.observe(record.second_token_gap_s)
        if record.broken:
            self._broken.inc()


def render(metrics: Iterable[Metric]) -> bytes:
    """Return series in Prometheus' text format."""
    return generate_latest(_Collected(metrics))


class _Collected(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
