"""What is known of one request: the main path writes it; metrics, the access log and the dashboard read it."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from baton.proxy.nodes.latency_histogram import GAP_BOUNDS_S, LatencyHistogram
from baton.proxy.nodes.node import Node
from baton.proxy.planning.plans import DisaggregatedPlan, Plan
from baton.proxy.tracing.traces import UNTRACED, Trace

_NO_NODES_GAPS: Final = LatencyHistogram(GAP_BOUNDS_S)


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request, from its head to its end. Instants are `perf_counter`'s."""

    request_id: str
    trace: Trace = UNTRACED
    arrived_s: float = field(default_factory=perf_counter)
    waited_s: float = 0.0  # until it was let in
    attempts: int = 0
    prefill_url: str = ""  # of the last nodes that were asked
    decode_url: str = ""
    path: str = ""  # how the answer was made, as far as is known
    reason: str = ""
    transfer_id: str = ""
    status: int = 0  # of the head, once it was sent
    broken: bool = False  # an error was sent after the head
    left: bool = False  # the client did not wait for the end
    first_token: str = ""  # "relayed" from the prefill node, or why not
    stream_began_s: float | None = None
    second_token_gap_s: float | None = None  # of a relayed first token to what the decode node added
    sent_s: float = 0.0  # a stream's last chunk
    sent_bytes: int = 0  # of the body
    chunks: int = 0  # of a stream, after the first
    gaps: LatencyHistogram = _NO_NODES_GAPS  # between chunks, of the decode node that is asked

    @property
    def ttft_s(self) -> float | None:
        """From the request's arrival to the first bytes of a stream."""
        return None if self.stream_began_s is None else self.stream_began_s - self.arrived_s

    def let_in(self, asked_s: float) -> None:
        self.waited_s = perf_counter() - asked_s
        self.trace.waited(self.waited_s)

    def asks(self, decode: Node | None, prefill: Node | None = None) -> None:
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
