"""Our response to one client: head and first bytes together, then chunk after chunk, or an error in the API's shape."""

from bisect import bisect_left
from time import perf_counter
from typing import Final

from starlette.types import Send

from baton.contracts.http import PATH_HEADER, REASON_HEADER, TRANSFER_HEADER
from baton.proxy.errors import ProxyError
from baton.proxy.http.headers import REQUEST_ID, printable
from baton.proxy.http_server.client_protocol import Writer
from baton.proxy.http_server.connection_budget import ConnectionClaim
from baton.proxy.nodes.latency_histogram import GAP_BOUNDS_S, LatencyHistogram
from baton.proxy.nodes.node import Node
from baton.proxy.planning.plans import DisaggregatedPlan, Plan
from baton.proxy.request.error_format import OPENAI, ErrorFormat
from baton.proxy.tracing.traces import UNTRACED, Trace

RawHeaderList = list[tuple[bytes, bytes]]
_PATH: Final = PATH_HEADER.encode()
_REASON: Final = REASON_HEADER.encode()
_TRANSFER: Final = TRANSFER_HEADER.encode()
_EVENT_END: Final = b"\n\n"
_NOBODYS: Final = LatencyHistogram(GAP_BOUNDS_S)


class ClientResponse:
    """The sending half of one exchange."""

    def __init__(
        self,
        send: Send,
        writer: Writer,
        claim: ConnectionClaim,
        request_id: str,
        shape: ErrorFormat = OPENAI,
        *,
        trace: Trace = UNTRACED,
    ) -> None:
        """`claim` is told when the answer streams."""
        self._send = send
        self._writer = writer
        self._shape = shape
        self.claim = claim
        self.request_id = request_id
        self.trace = trace
        self.arrived_s = perf_counter()  # as all times here
        self.waited_s = 0.0  # until it was let in
        self.attempts = 0
        self.prefill_url = ""  # of the last nodes that were asked
        self.decode_url = ""
        self.sent_bytes = 0  # of the body
        self.path = ""  # how the answer was made, as far as is known
        self.reason = ""
        self.transfer_id = ""
        self.status = 0  # of the head, once it was sent
        self.broken = False  # an error was sent after the head
        self.left = False  # the client did not wait for the end
        self.stream_began_s: float | None = None
        self._sent_s = 0.0  # a stream's last chunk
        self._gaps = _NOBODYS
        self._ended = False
        self._last = b""

    @property
    def ttft_s(self) -> float | None:
        """From the request's arrival to the first bytes of a stream."""
        return None if self.stream_began_s is None else self.stream_began_s - self.arrived_s

    def let_in(self, asked_s: float) -> None:
        """Note how long it has waited since it asked to be let in."""
        self.waited_s = perf_counter() - asked_s
        self.trace.waited(self.waited_s)

    def asks(self, decode: Node | None, prefill: Node | None = None) -> None:
        """Note who is asked now."""
        self.attempts += 1
        self.prefill_url = prefill.url if prefill is not None else ""
        self.decode_url = decode.url if decode is not None else ""
        if decode is not None:
            self._gaps = decode.times.gaps

    def take(self, plan: Plan) -> None:
        """Say in the head how the answer is made; once it was sent, that is how it began."""
        self.asks(plan.decode, plan.prefill if isinstance(plan, DisaggregatedPlan) else None)
        if self.status:
            return
        self.path, self.reason = plan.path, plan.reason
        self.transfer_id = plan.transfer_id if isinstance(plan, DisaggregatedPlan) else ""

    async def start(
        self, status: int, headers: RawHeaderList, first: bytes, *, streams: bool, ends: bool = False
    ) -> None:
        """Send the head with the first bytes of a stream, which are all of it if it `ends`, or with the whole body."""
        self.status = status
        head = [*headers, *self._labels()]
        if streams:
            self.stream_began_s = self._sent_s = perf_counter()
            self.claim.streams()
            self._last = first
            self.sent_bytes += len(first)
            self._ended = ends
            if not self._writer.begin(status, head, first, ends=ends):
                await self.drained()
        else:
            self._ended = True
            self.sent_bytes += len(first)
            await self._send({"type": "http.response.start", "status": status, "headers": head})
            await self._send({"type": "http.response.body", "body": first})

    async def relay(self, chunk: bytes) -> None:
        """Send a further chunk of a stream as it came, and wait for a client that is slow."""
        if not self.write(chunk):
            await self.drained()

    def write(self, chunk: bytes) -> bool:
        """Send a chunk of a stream at once, unless it is empty; return whether the client keeps up. See `drained`."""
        if not chunk:
            return True
        # `LatencyHistogram.observe`: the way of most chunks, where a call would cost as much as what it does.
        now_s, gaps = perf_counter(), self._gaps
        gap_s = now_s - self._sent_s
        gaps.counts[bisect_left(gaps.bounds_s, gap_s)] += 1
        gaps.sum_s += gap_s
        self._sent_s = now_s
        self.sent_bytes += len(chunk)
        self._last = chunk
        return self._writer.write(chunk)

    async def drained(self) -> None:
        """Wait until the client has read enough of what was written."""
        await self._writer.drained()

    def end(self) -> None:
        """End a stream."""
        self._ended = True
        self._writer.end()

    async def fail(self, error: ProxyError) -> None:
        """Answer with an error, or end a stream that has begun with an error event: never with a silent end."""
        if self.status == 0:
            body = self._shape.body(error)
            headers = [(b"content-length", b"%d" % len(body)), *error.headers]
            if not any(name == b"content-type" for name, _ in error.headers):
                headers.append((b"content-type", b"application/json"))
            await self.start(error.status, headers, body, streams=False)
        elif not self._ended:
            self.broken = True
            opening = b"" if self._last.endswith(_EVENT_END) else _EVENT_END  # close the event that was cut
            event = opening + self._shape.event(error) + _EVENT_END
            self.sent_bytes += len(event)
            if not self._writer.write(event):
                await self.drained()
            self.end()

    def _labels(self) -> RawHeaderList:
        labels = [(REQUEST_ID, self.request_id.encode("ascii"))]
        if self.path:
            labels.append((_PATH, self.path.encode("ascii")))
        if self.reason:
            labels.append((_REASON, printable(self.reason)))
        if self.transfer_id:
            labels.append((_TRANSFER, self.transfer_id.encode("ascii")))
        return labels
