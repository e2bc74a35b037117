"""A link on a virtual clock: a sending engine's pushes travel one behind the other at a fixed rate."""

from dataclasses import dataclass
from typing import Any

from baton.kv_connector.layout.copy_plan import CopyPlan
from tests.support.virtual_host import VirtualHost

SUBMIT_S = 100e-6


class LateLink:
    """A sending engine: its pushes take their turn on one link."""

    def __init__(self, host: VirtualHost, bytes_per_s: float, layer_of: Any) -> None:
        self.submitted: list[tuple[float, set[int]]] = []  # instant, layers
        self.pushes: list[LatePush] = []
        self.most_under_way = 0  # pushes
        self._host = host
        self._bytes_per_s = bytes_per_s
        self._layer_of = layer_of
        self._free_at = 0.0

    def submit(self, target: str, plan: CopyPlan) -> "LatePush":
        self._host.sleep(SUBMIT_S)
        self.submitted.append((self._host.now(), {self._layer_of(copy.src) for copy in plan}))
        begins_at = max(self._free_at, self._host.now())
        self._free_at = begins_at + plan.total_bytes / self._bytes_per_s
        self.pushes.append(LatePush(self._host, begins_at, self._free_at))
        self.most_under_way = max(self.most_under_way, sum(push.seen_at is None for push in self.pushes))
        return self.pushes[-1]


@dataclass(slots=True)
class LatePush:
    host: VirtualHost
    begins_at: float
    ends_at: float
    looks: int = 0
    seen_at: float | None = None  # when a poll saw that it had ended

    def poll(self) -> bool | None:
        self.looks += 1
        if self.host.now() < self.ends_at:
            return None
        self.seen_at = self.host.now()
        return True
