"""The dashboard's data: made at most twice a second, however many look."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from baton.contracts.secret import ClusterSecret
from baton.proxy.admin.about import running_version
from baton.proxy.admin.worker_group import WorkerGroup
from baton.proxy.admission.admission import Admission
from baton.proxy.dashboard.asking import Nodes
from baton.proxy.dashboard.recorder import RequestRecorder
from baton.proxy.dashboard.snapshot import DashboardSnapshot, for_anybody, joined, snapshot
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.registry import NodeRegistry
from baton.proxy.telemetry.request_telemetry import RequestTelemetry
from baton.proxy.workers.channel import decode, encode

FRESH_S: Final = 0.5  # an answer is good for so long
GLANCE, LOOK = "glance", "look"  # what workers are asked: without single requests, with them
FORMAT: Final = 1  # of the feed


class Dashboard:
    """One worker's; whichever is asked answers for all."""

    def __init__(
        self,
        worker_group: WorkerGroup,
        members: NodeRegistry,
        admission: Admission,
        *,
        telemetry: RequestTelemetry,
        secret: ClusterSecret,
        upstream: Upstream,
    ) -> None:
        self._worker_group = worker_group
        self._members = members
        self._admission = admission
        self._registry = telemetry.metrics.registry
        self._recorder = RequestRecorder(telemetry)
        self._nodes = Nodes(secret, upstream, members)
        self._made: dict[bool, tuple[float, bytes]] = {}  # for operators or not: when, and what
        self._making = asyncio.Lock()
        worker_group.tells |= {GLANCE: lambda: self._snapshot(None), LOOK: self._look}

    async def stop(self) -> None:
        """Look no more; idempotent."""
        self._recorder.stop()
        await self._nodes.stop()

    async def feed(self, *, for_operator: bool) -> bytes:
        """Return what is to be seen now, as JSON. An operator's look makes requests be watched."""
        async with self._making:
            at_s, body = self._made.get(for_operator, (0.0, b""))
            if not body or time.monotonic() - at_s > FRESH_S:
                body = await self._make(for_operator=for_operator)
                self._made[for_operator] = time.monotonic(), body
            return body

    async def timeline(self, transfer_id: str, prefill: str, decode: str) -> dict[str, Any]:
        """Return what both nodes say of one transfer, and where D's instants lie on P's axis."""
        there, here = await asyncio.gather(
            self._nodes.timeline(prefill, "prefill", transfer_id),
            self._nodes.timeline(decode, "decode", transfer_id),
        )
        return {"prefill": there, "decode": here, "offset": _offset(here.get("ended") or ())}

    async def _make(self, *, for_operator: bool) -> bytes:
        if for_operator:
            self._nodes.start(lambda: self._recorder.is_watched)
        told = await self._worker_group.all_tell(LOOK if for_operator else GLANCE)
        body = joined([decode(each, DashboardSnapshot) for each in told], self._worker_group.size)
        head = {
            "format": FORMAT,
            "at": round(time.time(), 3),
            "version": running_version(),
            "operator": for_operator,
        }
        if not for_operator:
            return msgspec.json.encode({**head, **for_anybody(body)})
        told_by_nodes = {"gauges": self._nodes.gauges(), "failures": self._nodes.failures()}
        return msgspec.json.encode({**head, **body, **told_by_nodes})

    def _look(self) -> bytes:
        self._recorder.look()
        return self._snapshot(self._recorder.shown())

    def _snapshot(self, requests: dict[str, Any] | None) -> bytes:
        made = snapshot(self._worker_group.number, self._members, self._admission, self._registry, requests)
        return encode(made)


class Offset(NamedTuple):
    """Where D's `arrived` lies on P's axis, on which `scheduled` is 0."""

    at_s: float
    uncertainty_s: float


def offset(prefill: Mapping[str, float], decode: Mapping[str, float]) -> Offset | None:
    """Return it from P's milestones, since `scheduled`, and D's, since `arrived`; None if one of the four is missing.

    Both nodes timed two messages, as NTP's a question and its answer: half of the difference of the two ways is the
    most by which it can be wrong, whatever the machines' clocks say.

        P's clock   ────────── reserved ─────────────── commit ────►
                              ▲  RESERVE                  │ COMMIT
        D's clock   ─ reserve_sent ──────────────── commit_received ────►
    """
    try:
        early = prefill["reserved"] - decode["reserve_sent"]  # too large by the way of RESERVE
        late = prefill["commit"] - decode["commit_received"]  # too small by the way of COMMIT
    except KeyError:
        return None
    return Offset(round((early + late) / 2, 6), round(abs(early - late) / 2, 6))


def _offset(records: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """Find it in D's records, which hold P's milestones as well; the flow that both timed best counts."""
    found = [offset(record["prefill"]["timings_s"], record["timings_s"]) for record in records if "prefill" in record]
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.uncertainty_s)._asdict() if known else None
