"""What is known of one request after its end.

TTFT, ITL and E2EL are defined as in `vllm.benchmarks`: an event with a choice is a token's arrival, the first one gives
TTFT, the distances between them are the ITLs, the last one ends E2EL. All count from the moment before the connection.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

# kinds of errors
STATUS: Final = "status"  # answered with another status than 200
TIMEOUT: Final = "timeout"  # not answered in full in time
CUT: Final = "cut"  # a 200 that ended before its [DONE]
ERROR_EVENT: Final = "error_event"  # an error event inside a 200
EMPTY: Final = "empty"  # a 200 that ended properly, without a token
CONNECT: Final = "connect"  # no connection, or it closed without an answer
MALFORMED: Final = "malformed"  # not HTTP, or not JSON inside the stream
LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")  # short names, as vLLM's
KINDS: Final = (STATUS, TIMEOUT, CUT, ERROR_EVENT, EMPTY, CONNECT, MALFORMED)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request, measured. Seconds count from the beginning of its stage."""

    index: int
    started_s: float
    ended_s: float  # when the answer, or the failure, was complete
    due_s: float | None = None  # when it should have started; open loop only
    queued_s: float = 0.0  # waited for the client's own cap on concurrency
    ttft_s: float | None = None  # None: no token came
    latency_s: float | None = None  # E2EL: to the last token
    itls_s: tuple[float, ...] = ()
    input_tokens: int = 0  # as the server counted, else as asked
    output_tokens: int = 0  # as the server counted, else the events that carried text
    asked_output_tokens: int = 0
    conversation: int = 0
    turn: int = 0
    status: int | None = None
    error: str = ""  # one of KINDS; empty: all went well
    detail: str = ""
    path: str = ""  # the server's x-baton-path
    transfer_id: str = ""  # its x-baton-transfer-id

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def first_token_s(self) -> float:
        """When the first token came; when the request was sent, if none did."""
        return self.started_s + (self.ttft_s or 0.0)

    @property
    def last_token_s(self) -> float:
        return self.started_s + (self.latency_s or 0.0)

    def latencies_s(self, name: str) -> Sequence[float]:
        """Return what there is of one kind of `LATENCIES`: several ITLs, else one or none."""
        if name == "itl":
            return self.itls_s
        value = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2el": self.latency_s}[name]
        return () if value is None else (value,)

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None where there is no second."""
        if self.output_tokens < 2 or self.latency_s is None or self.ttft_s is None:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)
