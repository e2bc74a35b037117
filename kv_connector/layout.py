"""Where one KV block lives, in plain integers.

A *region* is one buffer of KV blocks: the K, the V, or the packed KV of one layer. Its unit is the *scheduler's* block,
the one that block tables name; a backend may divide it into k smaller *kernel* blocks, which then lie side by side:

    base_addr          + stride_bytes       + 2 * stride_bytes
    |[kernel][kernel]..|[kernel][kernel]....|
    |<- block_bytes ->| |<- block_bytes ->|

It imports neither torch, vLLM nor Mooncake. Read `Region` first, then `plan.py`, which pairs two of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

from contracts.node_info import RegionInfo
from kv_connector.errors import LayoutError

Span = tuple[int, int]  # address and length, both in bytes

_ADDRESS_LIMIT = 1 << 63  # addresses are computed with signed 64-bit integers; no user space reaches higher


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One buffer of KV blocks."""

    name: str
    layer: int  # index of the layer in this rank's order
    base_addr: int  # device address of block 0, bytes
    block_bytes: int  # payload of one scheduler block
    stride_bytes: int  # start of block i to start of block i + 1
    num_blocks: int  # scheduler blocks

    def __post_init__(self) -> None:
        if min(self.base_addr, self.layer) < 0 or min(self.block_bytes, self.num_blocks) < 1:
            raise LayoutError(f"{self} has a negative or zero field")
        if self.stride_bytes < self.block_bytes:
            raise LayoutError(
                f"{self.name}: a stride of {self.stride_bytes} B cannot hold a block of {self.block_bytes} B"
            )
        if self.end_addr > _ADDRESS_LIMIT:
            raise LayoutError(f"{self.name}: its end, {self.end_addr:#x}, is no address")

    @property
    def end_addr(self) -> int:
        """The first address behind the last block's payload."""
        return self.base_addr + (self.num_blocks - 1) * self.stride_bytes + self.block_bytes

    @property
    def is_dense(self) -> bool:
        """Whether the payloads of consecutive blocks touch, so that a run of blocks is one run of bytes."""
        return self.stride_bytes == self.block_bytes

    def to_info(self) -> RegionInfo:
        """Return this region as it is announced to peers."""
        return RegionInfo(
            name=self.name,
            layer=self.layer,
            base_addr=self.base_addr,
            block_bytes=self.block_bytes,
            stride_bytes=self.stride_bytes,
            num_blocks=self.num_blocks,
        )

    @classmethod
    def from_info(cls, info: RegionInfo) -> "Region":
        """Read a peer's announcement.

        Raises:
            LayoutError: its numbers describe no buffer.
        """
        return cls(
            name=info.name,
            layer=info.layer,
            base_addr=info.base_addr,
            block_bytes=info.block_bytes,
            stride_bytes=info.stride_bytes,
            num_blocks=info.num_blocks,
        )


class _Dim(NamedTuple):
    size: int
    stride: int  # elements


def regions_of_tensor(
    *,
    name: str,
    layer: int,
    base_addr: int,
    shape: Sequence[int],
    strides: Sequence[int],
    itemsize: int,
    num_blocks: int,
) -> tuple[Region, ...]:
    """Find the regions of one KV tensor.

    Args:
        name: Name of the layer; the two regions of `[2, blocks, …]` are called `name.0` and `name.1`.
        layer: Index of the layer.
        base_addr: Address of the tensor's first element.
        shape: `[num_blocks * k, …]` (K and V packed in one block) or `[2, num_blocks * k, …]` (K and V apart, as in
            vLLM's FlashAttention backend), where a scheduler block has k kernel blocks.
        strides: Of each dimension, in elements; any order, as long as a block's payload has no gaps.
        itemsize: Bytes of one element.
        num_blocks: Scheduler blocks in the pool.

    Raises:
        LayoutError: no dimension counts blocks, either of two could, or a block's payload has gaps.
    """
    dims = [_Dim(*dim) for dim in zip(shape, strides, strict=True)]
    packed = bool(dims) and _counts_blocks(dims[0], num_blocks)
    apart = len(dims) > 1 and dims[0].size == 2 and _counts_blocks(dims[1], num_blocks)
    if packed == apart:
        which = "the first or the second" if packed else "none"
        raise LayoutError(f"{name}: of the dimensions of {list(shape)}, {which} counts {num_blocks} blocks")
    make = partial(_region, layer=layer, itemsize=itemsize, num_blocks=num_blocks)
    if packed:
        return (make(dims, name=name, base_addr=base_addr),)
    offset = dims[0].stride * itemsize
    return tuple(make(dims[1:], name=f"{name}.{i}", base_addr=base_addr + i * offset) for i in range(2))


def _counts_blocks(dim: _Dim, num_blocks: int) -> bool:
    return dim.size > 0 and num_blocks > 0 and dim.size % num_blocks == 0


def _region(dims: list[_Dim], *, name: str, layer: int, base_addr: int, itemsize: int, num_blocks: int) -> Region:
    kernel_blocks, inner = dims[0], dims[1:]
    per_block = kernel_blocks.size // num_blocks
    if not _is_dense(inner):
        raise LayoutError(f"{name}: the payload of a block has gaps (sizes and strides {[tuple(d) for d in inner]})")
    kernel_elements = prod(dim.size for dim in inner)
    if per_block > 1 and kernel_blocks.stride != kernel_elements:
        raise LayoutError(f"{name}: the {per_block} kernel blocks of a scheduler block do not lie side by side")
    return Region(
        name=name,
        layer=layer,
        base_addr=base_addr,
        block_bytes=per_block * kernel_elements * itemsize,
        stride_bytes=per_block * kernel_blocks.stride * itemsize,
        num_blocks=num_blocks,
    )


def _is_dense(dims: Iterable[_Dim]) -> bool:
    """Whether the dimensions, in some order, cover one contiguous run of elements."""
    expected = 1
    for dim in sorted((d for d in dims if d.size != 1), key=lambda d: d.stride):
        if dim.stride != expected:
            return False
        expected *= dim.size
    return True


def unique_regions(regions: Iterable[Region]) -> tuple[Region, ...]:
    """Keep the first of each set of aliases (layers that share KV), in order.

    Raises:
        LayoutError: two regions start at the same address with the same stride, but hold blocks of different sizes.
    """
    kept: dict[tuple[int, int], Region] = {}
    for region in regions:
        first = kept.setdefault((region.base_addr, region.stride_bytes), region)
        if first.block_bytes != region.block_bytes:
            raise LayoutError(f"{first} and {region} share memory but not the size of a block")
    return tuple(kept.values())


def storage_spans(regions: Iterable[Region]) -> list[Span]:
    """Return the memory under `regions` as the fewest spans, sorted; regions that touch or interleave share one."""
    spans: list[Span] = []
    for start, end in sorted((region.base_addr, region.end_addr) for region in regions):
        if spans and start <= sum(spans[-1]):
            first, length = spans[-1]
            spans[-1] = (first, max(length, end - first))
        else:
            spans.append((start, end - start))
    return spans


def check_compatible(mine: Sequence[Region], theirs: Sequence[Region]) -> None:
    """Check that two ranks divide their KV cache alike. Addresses, strides and pool sizes may differ.

    Raises:
        LayoutError: they do not; the message gives the first difference, with both values.
    """
    check_count(mine, theirs)
    for ours, other in zip(mine, theirs, strict=True):
        here, there = (ours.name, ours.layer, ours.block_bytes), (other.name, other.layer, other.block_bytes)
        if here != there:
            raise LayoutError(
                f"KV region {here[0]!r} (layer {here[1]}, {here[2]} B a block) here, "
                f"{there[0]!r} (layer {there[1]}, {there[2]} B a block) there"
            )


def check_count(mine: Sequence[object], theirs: Sequence[object]) -> None:
    """Check that two ranks have as many regions, whatever these are.

    Raises:
        LayoutError: they do not.
    """
    if len(mine) != len(theirs):
        raise LayoutError(f"{len(mine)} KV regions here, {len(theirs)} there")
