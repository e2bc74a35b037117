"""How a worker introduces itself to a peer, and whether it accepts the peer's introduction."""

from dataclasses import dataclass

from contracts.node_info import Fingerprint, differences
from kv_connector.errors import LayoutError
from kv_connector.layout import Region, check_compatible, check_count
from kv_connector.protocol import Hello, Rank
from kv_connector.worker_side.caches import Caches


@dataclass(frozen=True, slots=True)
class Introduction:
    """One worker's `Hello`."""

    node: str
    rank: Rank
    fingerprint: Fingerprint
    caches: Caches

    def hello(self) -> Hello:
        """Make our introduction."""
        return Hello(
            node=self.node,
            rank=self.rank,
            fingerprint=self.fingerprint,
            regions=[region.to_info() for region in self.caches.regions],
        )

    def judge(self, theirs: Hello) -> str:
        """Return why KV must not be exchanged with this peer, naming both sides; "" if it may."""
        reasons = differences(self.fingerprint, theirs.fingerprint)
        if self.rank != theirs.rank:
            reasons.append(f"parallelism: {self.rank} here, {theirs.rank} there")
        try:
            check_count(self.caches.regions, theirs.regions)  # first: they may have sent thousands
            check_compatible(self.caches.regions, [Region.from_info(info) for info in theirs.regions])
        except LayoutError as exc:
            reasons.append(str(exc))
        return f"{self.node} and {theirs.node} do not fit: {'; '.join(reasons)}" if reasons else ""
