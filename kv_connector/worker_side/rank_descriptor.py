"""How a worker introduces itself to a peer, and whether it accepts the peer's introduction."""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.contracts.kv_transfer import Grid, Grids, Role
from baton.contracts.node_info import Fingerprint, differences
from baton.kv_connector.errors import LayoutError
from baton.kv_connector.handoff.gather import Flow
from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.outgoing import ProducerTransfer
from baton.kv_connector.handoff.pushing import GroupPair, TransferLayout
from baton.kv_connector.layout.pairing import Pairing, Side, pair, shares_of
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.layout.tp_mapping import flow_id, readers, sources
from baton.kv_connector.protocol.messages import Hello, Rank
from baton.kv_connector.worker_side.caches import Caches
from baton.kv_connector.worker_side.digesting import Part, parts_of


@dataclass(frozen=True, slots=True)
class RankDescriptor:
    """What one worker says of itself in `Hello`."""

    node: str
    role: Role
    rank: Rank
    fingerprint: Fingerprint
    caches: Caches
    # Numbers of heads, and of parts of states, that ranks divide: of the whole model, so the same on both nodes. See
    # `divided_among`.
    divided: tuple[int, ...] = (1,)

    @property
    def grid(self) -> Grid:
        return Grid(self.rank.tp_size, self.rank.pp_size)

    @property
    def index(self) -> int:
        return self.rank.pp * self.rank.tp_size + self.rank.tp

    @property
    def samples(self) -> bool:
        """Whether this rank's steps return the sampled tokens."""
        return self.rank.tp == 0 and self.rank.pp == self.rank.pp_size - 1

    @property
    def side(self) -> Side:
        return Side(self.rank, self.caches.regions, self.caches.block_tokens)

    def hello(self) -> Hello:
        return Hello(
            node=self.node,
            rank=self.rank,
            fingerprint=self.fingerprint,
            regions=list(self.caches.regions),
        )

    def check_compatible(self, theirs: Hello) -> str:
        """Return why KV must not be exchanged with this peer, naming both sides; "" if it may."""
        reasons = differences(self.fingerprint, theirs.fingerprint)
        if not reasons:
            try:
                self.pairing(theirs)
            except LayoutError as exc:
                reasons.append(str(exc))
        return f"{self.node} and {theirs.node} do not fit: {'; '.join(reasons)}" if reasons else ""

    def pairing(self, theirs: Hello) -> Pairing:
        """Compare our layout with a peer's; raises `LayoutError` if they do not fit."""
        regions = [Region.from_info(info) for info in theirs.regions]
        others = Side(theirs.rank, regions, theirs.fingerprint.block_size_tokens)
        return pair(self.side, others) if self.role == "prefill" else pair(others, self.side)

    def flows_from(self, transfer_id: str, grids: Grids) -> list[tuple[str, int]]:
        """Return the flows by which this prefill rank sends a transfer: id, and how many ranks share in it there."""
        divided, prefill, decode = self.divided, grids.prefill, grids.decode
        return [
            (flow_id(transfer_id, prefill, decode, self.index, reader), len(sources(divided, prefill, decode, reader)))
            for reader in readers(divided, prefill, decode, self.index)
        ]

    def flows_to(self, transfer_id: str, grids: Grids, peers: Sequence[str]) -> list[Flow]:
        """Return the flows by which this decode rank gets a transfer from the ranks at `peers`."""
        prefill, decode = grids
        return [
            Flow(flow_id(transfer_id, prefill, decode, source, self.index), peers[source])
            for source in sources(self.divided, prefill, decode, self.index)
        ]

    def shares_from(self, grids: Grids) -> int:
        """Return how many shares all flows of a transfer to this decode rank push together."""
        return shares_of(self.side, grids.prefill.tp)

    def terms(self, theirs: Hello) -> TransferLayout:
        """Return what a decode rank that was accepted has in common with us."""
        found = self.pairing(theirs)
        unit, names = found.unit_tokens, [region.name for region in self.caches.regions]
        return TransferLayout(
            layers=found.layers,
            block_units=found.src_block_tokens // unit,
            their_block_units=found.dst_block_tokens // unit,
            shares=found.shares,
            whole=found.whole,
            regions=[names.index(pair.src.name) for pair in found.of_target],
            groups={
                pair.src.layer: GroupPair(pair.src.group, pair.dst.group, pair.src.window, pair.src.places)
                for pair in found.regions
            },
        )

    def read_from(self, transfer: ProducerTransfer) -> list[Part]:
        """Return what of our KV a complete transfer's pushes have read, whole blocks."""
        regions, terms = self.caches.regions, transfer.terms
        return parts_of(
            terms.regions,
            lambda region: terms.group_of(regions[region].layer),
            lambda group: transfer.pushed_blocks(self.caches.block_tokens, group),
        )

    def written_to(self, wish: BlockReservation, theirs: Hello) -> list[Part]:
        """Return what of our KV a prefill rank has written; regions in its order."""
        regions = self.caches.regions
        names = [region.name for region in regions]
        return parts_of(
            [names.index(pair.dst.name) for pair in self.pairing(theirs).of_target],
            lambda region: regions[region].group,
            lambda group: [block for block in wish.blocks[group] if block],
        )
