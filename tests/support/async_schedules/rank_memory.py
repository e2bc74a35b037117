"""The KV cache of a node of several tensor-parallel ranks: each has its KV heads and its parts of states."""

import ctypes
from dataclasses import replace

from baton.contracts.kv_transfer import SINGLE, Grid
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.layout.tp_mapping import heads_of
from baton.kv_connector.protocol.messages import Rank
from tests.support.async_schedules.kv_manager import STATE_BYTES, TOKEN_BYTES, GroupMemory, Layout

HEADS = 2  # KV heads of a layer: a token's bytes are divided among them
HEAD_BYTES = TOKEN_BYTES // HEADS
STATE_PARTS = (
    (4, 2),
    (8, 1),
    (16, 2),
)  # runs of a state: heads of x, a single group that every rank has, the temporal state
assert sum(size * parts for size, parts in STATE_PARTS) == STATE_BYTES


class RankMemory(GroupMemory):
    """One rank of it."""

    def __init__(self, layout: Layout, rank: Rank) -> None:
        super().__init__(layout)
        self._heads = heads_of(HEADS, rank.tp_size, rank.tp)
        self.parts: list[slice] = []  # of a whole state, in the order in which they lie here
        begin = 0
        for size, parts in STATE_PARTS:
            mine = heads_of(parts, rank.tp_size, rank.tp)
            self.parts.append(slice(begin + mine.start * size, begin + mine.stop * size))
            begin += parts * size
        self.caches = replace(self.caches, regions=tuple(map(self._divided, self.caches.regions)))

    def write(self, layer: int, block: int, place: int, text: bytes) -> None:
        for head in self._heads:
            begins = range(head * HEAD_BYTES, len(text), TOKEN_BYTES)
            mine = b"".join(text[begin : begin + HEAD_BYTES] for begin in begins)
            ctypes.memmove(self._address_of(layer, block, place, head), mine, len(mine))

    def read(self, layer: int, block: int, place: int) -> bytes:
        addresses = (self._address_of(layer, block, place, head) for head in self._heads)
        return b"".join(ctypes.string_at(address, HEAD_BYTES) for address in addresses)

    def write_state(self, layer: int, block: int, text: bytes) -> None:
        self.fill(layer, block, self._mine(text))

    def read_state(self, layer: int, block: int) -> bytes:
        return ctypes.string_at(self.address(layer, block), self.caches.regions[layer].block_bytes)

    def has_state(self, layer: int, block: int, text: bytes) -> bool:
        return self.read_state(layer, block) == self._mine(text)

    def _mine(self, text: bytes) -> bytes:
        return b"".join(text[part] for part in self.parts)

    def _address_of(self, layer: int, block: int, place: int, head: int) -> int:
        tokens = self._layout.tokens_of(self._layout.group_of(layer))
        return self.address(layer, block) + ((head - self._heads.start) * tokens + place % tokens) * HEAD_BYTES

    def _divided(self, region: Region) -> Region:
        if self._layout.is_state(region.layer):
            size = sum(part.stop - part.start for part in self.parts)
            return replace(region, block_bytes=size, state_parts=STATE_PARTS)
        size = region.block_bytes // HEADS * len(self._heads)
        return replace(region, block_bytes=size, heads=len(self._heads), total_heads=HEADS)


class NodeMemory:
    """All ranks of it, read and written as one."""

    def __init__(self, layout: Layout, grid: Grid) -> None:
        self.ranks = [RankMemory(layout, Rank(tp=tp, tp_size=grid.tp)) for tp in range(grid.tp)]
        self.caches = self.ranks[0].caches

    def fill(self, layer: int, block: int, text: bytes) -> None:
        for rank in self.ranks:
            rank.fill(layer, block, text)

    def read(self, layer: int, block: int, place: int) -> bytes:
        return b"".join(rank.read(layer, block, place) for rank in self.ranks)

    def read_state(self, layer: int, block: int) -> bytes:
        """The state of which all ranks have their parts; if what several have is not the same, no state at all."""
        whole = bytearray(STATE_BYTES)
        for rank in self.ranks:
            found, begin = rank.read_state(layer, block), 0
            for part in rank.parts:
                size = part.stop - part.start
                whole[part], begin = found[begin : begin + size], begin + size
        same = all(rank.has_state(layer, block, bytes(whole)) for rank in self.ranks)
        return bytes(whole) if same else b"not the same on all ranks: " + whole


def memory_of(layout: Layout, grid: Grid) -> GroupMemory | NodeMemory:
    """Make a node's memory; where both nodes have a single rank nothing is divided."""
    return GroupMemory(layout) if layout.grids == SINGLE else NodeMemory(layout, grid)
