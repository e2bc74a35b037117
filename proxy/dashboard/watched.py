"""A request that is being watched: what notes its legs stands around its trace.

The main path tells a request's trace of everything that matters (`tracing/traces.py`): a watched request has one that
notes it, around the one that it would have had. All others are served as if there were no dashboard.
"""

import time
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from baton.proxy.response.request_record import RequestRecord
from baton.proxy.tracing.traces import Leg, Trace

MAX_LEGS: Final = 8  # of one request; more attempts are counted alone
MAX_EVENTS: Final = 8


class WatchedLeg(Leg):
    """One request to one node; instants in s since the request's arrival."""

    __slots__ = ("_began_s", "_inner", "_origin_s", "ended_s", "first_s", "line", "problem", "role", "url")

    def __init__(self, inner: Leg, role: str, url: str, origin_s: float) -> None:
        self._inner = inner
        self._origin_s = origin_s
        self._began_s = perf_counter() - origin_s
        self.line = inner.line
        self.role = role
        self.url = url
        self.first_s: float | None = None
        self.ended_s: float | None = None
        self.problem = ""

    def event(self, name: str) -> None:
        """Note that something happened: there are first bytes, and nothing else."""
        if self.first_s is None:
            self.first_s = perf_counter() - self._origin_s
        self._inner.event(name)

    def end(self, problem: str = "") -> None:
        if self.ended_s is None:
            self.ended_s = perf_counter() - self._origin_s
            self.problem = problem
        self._inner.end(problem)

    def shown(self) -> list[Any]:
        instants = (self._began_s, self.first_s, self.ended_s)
        return [self.role, self.url, *(None if at is None else round(at, 6) for at in instants), str(self.problem)]


class WatchedTrace(Trace):
    """The trace of one request that the dashboard shows."""

    __slots__ = ("_ended", "_inner", "_origin_s", "events", "legs", "line", "trace_id")

    def __init__(self, inner: Trace, origin_s: float, ended: Callable[[], None]) -> None:
        self._inner = inner
        self._origin_s = origin_s
        self._ended = ended
        self.line = inner.line
        self.trace_id = inner.trace_id
        self.legs: list[WatchedLeg] = []
        self.events: list[list[Any]] = []

    def waited(self, wait_s: float) -> None:
        self._inner.waited(wait_s)

    def leg(self, role: str, url: str) -> Leg:
        inner = self._inner.leg(role, url)
        if len(self.legs) >= MAX_LEGS:
            return inner
        leg = WatchedLeg(inner, role, url, self._origin_s)
        self.legs.append(leg)
        return leg

    def event(self, name: str, **fields: str) -> None:
        if len(self.events) < MAX_EVENTS:
            about = " ".join(f"{key} {value}" for key, value in fields.items())
            self.events.append([round(perf_counter() - self._origin_s, 6), name, about])
        self._inner.event(name, **fields)

    def end(self, status: int, *, failed: bool, **fields: str | int) -> None:
        self._inner.end(status, failed=failed, **fields)
        self._ended()


class WatchedRequest:
    """One request, as the dashboard shows it."""

    def __init__(self, record: RequestRecord, ended: Callable[["WatchedRequest"], None]) -> None:
        self._at_s = time.time()
        self._ended_s: float | None = None
        self._record = record
        self._tell = ended
        self._trace = record.trace = WatchedTrace(record.trace, record.arrived_s, self._end)

    @property
    def phase(self) -> str:
        record = self._record
        if self._ended_s is not None:
            return "ended"
        if record.stream_began_s is not None:
            return "streaming"
        if not record.attempts:
            return "waiting"
        computing = any(leg.role == "prefill" and leg.ended_s is None for leg in self._trace.legs)
        return "prefill" if computing else "decode"

    def shown(self) -> dict[str, Any]:
        """Return it as the page takes it: no prompt, no answer, no key."""
        record = self._record
        began_s, ttft_s = record.stream_began_s, record.ttft_s
        itl_s = (record.sent_s - began_s) / record.chunks if began_s is not None and record.chunks else None
        lasted_s = perf_counter() - record.arrived_s if self._ended_s is None else self._ended_s
        return {
            "id": record.request_id,
            "at": round(self._at_s, 3),
            "phase": self.phase,
            "path": record.path,
            "reason": record.reason,
            "status": int(record.status),
            "broken": record.broken,
            "left": record.left,
            "prefill": record.prefill_url,
            "decode": record.decode_url,
            "transfer": record.transfer_id,
            "attempts": record.attempts,
            "wait_s": round(record.waited_s, 6),
            "ttft_s": None if ttft_s is None else round(ttft_s, 6),
            "itl_s": None if itl_s is None else round(itl_s, 6),
            "chunks": record.chunks + (began_s is not None),
            "lasted_s": round(lasted_s, 6),
            "legs": [leg.shown() for leg in self._trace.legs],
            "events": self._trace.events,
        }

    def _end(self) -> None:
        if self._ended_s is None:
            self._ended_s = perf_counter() - self._record.arrived_s
            self._tell(self)
