"""What a prefill node streams, on its way to the client: the answer's first token, while the decode node waits for the KV."""

from collections.abc import Callable
from time import perf_counter

from baton.proxy.http import headers
from baton.proxy.http.response import UpstreamResponse
from baton.proxy.planning.plans import DisaggregatedPlan, Plan
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.resume.events import has_data
from baton.proxy.resume.stream import Stream


class FirstTokenRelay:
    """Of one request, over all its attempts."""

    def __init__(self, client: ClientResponse, stream: Stream) -> None:
        self.client = client
        self.stream = stream
        self.record = client.record
        self.onto: Plan | None = None  # how the answer goes on when it leaves a node that has sent its KV ahead
        self.asked_at = 0.0  # when the present decode node was asked (time.monotonic)
        self.began_s = 0.0  # when the prefill node's first event came (time.perf_counter); 0: it has not
        self.on_first_event: Callable[[float], None] | None = None  # gets that time

    @property
    def has_begun(self) -> bool:
        """Whether the client has something of a prefill node's."""
        return self.stream.part is not None and self.stream.part.has_passed

    @property
    def is_whole(self) -> bool:
        """Whether the client has the whole answer, which ended with its first token."""
        return self.stream.part is not None and self.stream.part.is_whole

    def begin(self, plan: DisaggregatedPlan) -> bool:
        """Return whether the prefill node's stream goes to the client."""
        if self.has_begun or self.stream.went_on:
            return False
        self.began_s, self.on_first_event = 0.0, None
        why_not = self.stream.why_not_relayed or ("started" if self.stream.asked.start else "")
        if not why_not and not (plan.first_token and plan.decode.starts_with_tokens):
            why_not = "nodes"
        self.record.first_token = why_not or "late"  # until it is there
        if why_not:
            return False
        self.stream.begin_prefill()
        return True

    def take(self, answer: UpstreamResponse, data: bytes) -> bool:
        """Send the client its part of some bytes; return whether it keeps up."""
        part = self.stream.part
        assert part is not None
        passed = part.take(data)
        if not self.began_s and has_data(data) and part.broken is None:
            self.began_s = perf_counter()
            if self.on_first_event is not None:
                self.on_first_event(self.began_s)
        if not passed:
            return True
        self.record.first_token = "relayed"  # noqa: S105  # no password
        if self.record.status:
            return self.client.write(passed)
        return self.client.begin_stream(200, headers.to_relay(answer.headers), passed)
