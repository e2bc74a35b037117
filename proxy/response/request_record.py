"""What is known of one request: the main path writes it; metrics, the access log and the dashboard read it."""

from time import perf_counter
from typing import Final

from baton.proxy.nodes.latency_histogram import GAP_BOUNDS_S, LatencyHistogram
from baton.proxy.nodes.node import Node
from baton.proxy.planning.plans import DisaggregatedPlan, Plan
from baton.proxy.tracing.traces import UNTRACED, Trace

_NO_NODES_GAPS: Final = LatencyHistogram(GAP_BOUNDS_S)


class RequestRecord:
    """One request, from its head to its end. Instants are `perf_counter`'s."""

    __slots__ = (
        "arrived_s",
        "attempts",
        "broken",
        "chunks",
        "decode_url",
        "first_token",
        "gaps",
        "left",
        "path",
        "prefill_url",
        "reason",
        "request_id",
        "second_token_gap_s",
        "sent_bytes",
        "sent_s",
        "status",
        "stream_began_s",
        "trace",
        "transfer_id",
        "waited_s",
    )

    def __init__(self, request_id: str, trace: Trace = UNTRACED) -> None:
        self.request_id = request_id
        self.trace = trace
        self.arrived_s = perf_counter()
        self.waited_s = 0.0  # until it was let in
        self.attempts = 0
        self.prefill_url = ""  # of the last nodes that were asked
        self.decode_url = ""
        self.path = ""  # how the answer was made, as far as is known
        self.reason = ""
        self.transfer_id = ""
        self.status = 0  # of the head, once it was sent
        self.broken = False  # an error was sent after the head
        self.left = False  # the client did not wait for the end
        self.first_token = ""  # "relayed" from the prefill node, or why not
        self.stream_began_s: float | None = None
        self.second_token_gap_s: float | None = None  # of a relayed first token to what the decode node added
        self.sent_s = 0.0  # a stream's last chunk
        self.sent_bytes = 0  # of the body
        self.chunks = 0  # of a stream, after the first
        self.gaps = _NO_NODES_GAPS  # between chunks, of the decode node that is asked

    @property
    def ttft_s(self) -> float | None:
        """From the request's arrival to the first bytes of a stream."""
        return None if self.stream_began_s is None else self.stream_began_s - self.arrived_s

    def let_in(self, asked_s: float) -> None:
        """Record how long it has waited since it asked to be let in."""
        self.waited_s = perf_counter() - asked_s
        self.trace.waited(self.waited_s)

    def asks(self, decode: Node | None, prefill: Node | None = None) -> None:
        """Record which nodes are asked now."""
        self.attempts += 1
        self.prefill_url = prefill.url if prefill is not None else ""
        self.decode_url = decode.url if decode is not None else ""
        if decode is not None:
            self.gaps = decode.times.gaps

    def record_plan(self, plan: Plan) -> None:
        """Record the plan that is tried now; once the head was sent, the path is how the answer began."""
        self.asks(plan.decode, plan.prefill if isinstance(plan, DisaggregatedPlan) else None)
        if self.status:
            return
        self.path, self.reason = plan.path, plan.reason
        self.transfer_id = plan.transfer_id if isinstance(plan, DisaggregatedPlan) else ""
