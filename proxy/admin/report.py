"""What a worker says about itself when another one asks."""

from typing import Any

import msgspec

from baton.proxy.admin.metric_families import Family
from baton.proxy.nodes.latency_histogram import Tally
from baton.proxy.nodes.views import AdmissionView, LeavingView, NodeView, WorkerView


class Counted(msgspec.Struct, frozen=True):
    """What has been counted, and what outlives a worker of it."""

    families: list[Family] = []
    times: list[Tally] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says about itself."""

    worker: int
    pid: int | None
    counted: Counted
    nodes: list[dict[str, Any]] = []
    leaving: list[dict[str, Any]] = []
    admission: dict[str, Any] | None = None
    uptime_s: float = 0.0
    in_flight: int = 0
    retries_left: int = 0

    def views(self) -> list[NodeView]:
        return [NodeView.model_validate(node) for node in self.nodes]

    def leavers(self) -> list[LeavingView]:
        return [LeavingView.model_validate(node) for node in self.leaving]

    def worker_view(self) -> WorkerView:
        requests = [node.requests for node in self.views()] + [node.requests for node in self.leavers()]
        admission = AdmissionView.model_validate(self.admission) if self.admission else None
        return WorkerView(
            worker=self.worker,
            pid=self.pid,
            uptime_s=self.uptime_s,
            in_flight=self.in_flight,
            requests=sum(requests),
            retries_left=self.retries_left,
            admission=admission,
        )
