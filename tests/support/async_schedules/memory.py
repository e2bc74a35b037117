"""The KV cache of a node of several tensor-parallel ranks: each has its KV heads and its parts of states."""

import ctypes
from collections.abc import Sequence
from hashlib import blake2b

import torch

from baton.contracts.kv_transfer import Grid
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.layout.tp_mapping import heads_of
from baton.kv_connector.protocol.messages import Rank
from baton.kv_connector.worker_side.caches import Caches
from baton.kv_connector.worker_side.digest import RegionDigests
from tests.support.async_schedules.layouts import STATE_BYTES, TOKEN_BYTES, Layout
from tests.support.ranks import BLOCK_BYTES

HEADS = 2  # KV heads of a layer: a token's bytes are divided among them
HEAD_BYTES = TOKEN_BYTES // HEADS
# Runs of a state: heads of x, a single group that every rank has, the temporal state.
STATE_PARTS = ((4, 2), (8, 1), (16, 2))
assert sum(size * parts for size, parts in STATE_PARTS) == STATE_BYTES


def content(token: int, layer: int, place: int) -> bytes:
    """What the KV of a token at a place of a prompt looks like in a layer."""
    return f"{token} {layer} {place}".encode().ljust(TOKEN_BYTES, b".")


def state(tokens: Sequence[int], layer: int) -> bytes:
    """What a recurrent layer's state looks like after some tokens of a prompt, from its beginning."""
    text = f"{layer} {len(tokens)} {blake2b(repr(list(tokens)).encode(), digest_size=20).hexdigest()}"
    return text.encode().ljust(STATE_BYTES, b".")


class RankMemory:
    """One rank of it: the first layers of all groups in one buffer, the second ones in the next."""

    def __init__(self, layout: Layout, rank: Rank) -> None:
        self._layout = layout
        self._heads = heads_of(HEADS, rank.tp_size, rank.tp)
        self.parts: list[slice] = []  # of a whole state, in the order in which they lie here
        begin = 0
        for size, parts in STATE_PARTS:
            mine = heads_of(parts, rank.tp_size, rank.tp)
            self.parts.append(slice(begin + mine.start * size, begin + mine.stop * size))
            begin += parts * size
        self._bytes = (ctypes.c_char * (layout.layers_each * layout.blocks * layout.stride_bytes))()
        self.caches = Caches(
            layer_of={f"layer.{layer}": layer for layer in range(layout.num_layers)},
            regions=tuple(map(self._region, range(layout.num_layers))),
            num_blocks=layout.blocks,
            block_tokens=layout.block_tokens,
        )

    def digests(self, blocks: Sequence[int], regions: Sequence[int]) -> bytes:
        """The digests of some blocks, computed as a worker computes them."""
        return RegionDigests([torch.frombuffer(self._bytes, dtype=torch.uint8)], self.caches.regions)(blocks, regions)

    def fill(self, layer: int, block: int, text: bytes) -> None:
        """Write over the beginning of a block, whatever it holds."""
        ctypes.memmove(self._address_of_block(layer, block), text, len(text))

    def write(self, layer: int, block: int, place: int, text: bytes) -> None:
        """Write the KV of tokens in a row, of which the first stands at a place of a prompt."""
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
        return ctypes.string_at(self._address_of_block(layer, block), self.caches.regions[layer].block_bytes)

    def has_state(self, layer: int, block: int, text: bytes) -> bool:
        """Whether a block holds, of this state, what it is to hold here."""
        return self.read_state(layer, block) == self._mine(text)

    def copy_state(self, layer: int, source: int, target: int) -> None:
        """Copy the state of one block to another."""
        self.fill(layer, target, self.read_state(layer, source))

    def _mine(self, text: bytes) -> bytes:
        return b"".join(text[part] for part in self.parts)

    def _address_of_block(self, layer: int, block: int) -> int:
        region = self.caches.regions[layer]
        return region.base_addr + block * region.stride_bytes

    def _address_of(self, layer: int, block: int, place: int, head: int) -> int:
        tokens = self._layout.tokens_of(self._layout.group_of(layer))
        return (
            self._address_of_block(layer, block) + ((head - self._heads.start) * tokens + place % tokens) * HEAD_BYTES
        )

    def _region(self, layer: int) -> Region:
        layout, group = self._layout, self._layout.group_of(layer)
        is_state, places = layout.is_state(layer), layout.places_of(group)
        size = sum(part.stop - part.start for part in self.parts)
        return Region(
            name=f"layer.{layer}",
            layer=layer,
            base_addr=ctypes.addressof(self._bytes)
            + layer // len(layout.windows) * layout.blocks * layout.stride_bytes,
            block_bytes=size if is_state else BLOCK_BYTES * places // HEADS * len(self._heads),
            stride_bytes=layout.stride_bytes,
            num_blocks=layout.blocks,
            heads=1 if is_state else len(self._heads),
            total_heads=0 if is_state else HEADS,
            group=group,
            window=layout.windows[group],
            places=places,
            state_parts=STATE_PARTS if is_state else (),
        )


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
