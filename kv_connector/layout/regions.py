"""Where one KV block lies, in plain integers.

A *region* is one buffer of KV blocks: the K, the V, or the packed KV of one layer. Its unit is the *scheduler's* block,
the one that block tables name; a backend may divide it into k smaller *kernel* blocks, which then lie side by side:

    base_addr          + stride_bytes       + 2 * stride_bytes
    |[kernel][kernel]..|[kernel][kernel]....|
    |<- block_bytes ->| |<- block_bytes ->|

A kernel block that may be divided among ranks is a row of *slabs*, one per KV head. A slab that may be divided among
blocks of other sizes is a row of *sections*, each with something of every token, in the tokens' order:

    [head 0: K of tokens 0, 1, … | V of tokens 0, 1, …][head 1: …]…

A block that keeps a *state* has no tokens. It is a row of runs, each with this rank's *parts* of what ranks divide:

    [x of heads 0, 1, … | B of groups 0, … | C of groups 0, … | temporal state of heads 0, 1, …]

It imports neither torch, vLLM nor Mooncake. `RegionInfo` has a region's fields; `copy_plan.py` pairs two regions.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

from msgspec.structs import asdict, replace

from baton.contracts.kv_transfer import MAX_GRID
from baton.contracts.node_info import RegionInfo
from baton.kv_connector.errors import LayoutError

Span = tuple[int, int]  # address and length, both in bytes
Sections = tuple[tuple[int, int], ...]
StateParts = tuple[tuple[int, int], ...]

_ADDRESS_LIMIT = 1 << 63  # addresses are computed with signed 64-bit integers; no user space reaches higher


class Region(RegionInfo, frozen=True, kw_only=True):
    """One buffer of KV blocks, whose numbers describe one: what a peer announces is made one by `from_info`."""

    def __post_init__(self) -> None:
        if min(self.base_addr, self.layer, self.total_heads, self.group) < 0:
            raise LayoutError(f"{self} has a negative field")
        if min(self.block_bytes, self.num_blocks, self.kernel_blocks, self.heads, self.places) < 1:
            raise LayoutError(f"{self} has a field below 1")
        if any(min(numbers) < 1 for numbers in self.sections + self.state_parts) or self.block_bytes % (
            self.kernel_blocks * self.heads * max(1, self.token_bytes)
        ):
            raise LayoutError(f"{self.name}: a block of {self.block_bytes} B cannot be divided as it says: {self}")
        if any(size > self.block_bytes or parts > self.block_bytes * MAX_GRID for size, parts in self.state_parts):
            raise LayoutError(f"{self.name}: a block of {self.block_bytes} B has no such parts: {self.state_parts}")
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
    def token_bytes(self) -> int:
        """Bytes of one token of one head; 0 where sections are not known."""
        return sum(count * size for count, size in self.sections)

    @property
    def is_dense(self) -> bool:
        """Whether the payloads of consecutive blocks touch, so that a run of blocks is one run of bytes."""
        return self.stride_bytes == self.block_bytes

    @classmethod
    def from_info(cls, info: RegionInfo) -> "Region":
        """Read a peer's announcement; raises `LayoutError` if its numbers describe no buffer."""
        return cls(**asdict(info))


class _Dim(NamedTuple):
    size: int
    stride: int  # elements


class Division(NamedTuple):
    """What is known of a tensor `[num_blocks * k, heads, tokens, content]`, whatever its strides."""

    total_heads: int  # KV heads of all ranks together
    # Of a head's tokens; None: they lie in order. A CPU kernel packs them in its own way.
    sections: Sections | None = None


def regions_of_tensor(
    *,
    name: str,
    layer: int,
    base_addr: int,
    shape: Sequence[int],
    strides: Sequence[int],
    itemsize: int,
    num_blocks: int,
    division: Division | None = None,
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
        division: How a block may be divided; None: only whole blocks can be exchanged.

    Raises `LayoutError` if no dimension counts blocks, either of two could, or a block's payload has gaps.
    """
    dims = [_Dim(*dim) for dim in zip(shape, strides, strict=True)]
    packed = bool(dims) and _counts_blocks(dims[0], num_blocks)
    apart = len(dims) > 1 and dims[0].size == 2 and _counts_blocks(dims[1], num_blocks)
    if packed == apart:
        which = "the first or the second" if packed else "none"
        raise LayoutError(f"{name}: of the dimensions of {list(shape)}, {which} counts {num_blocks} blocks")
    make = partial(_region, layer=layer, itemsize=itemsize, num_blocks=num_blocks)
    if packed:
        whole = make(dims, name=name, base_addr=base_addr)
        return (whole if division is None else _divided(whole, dims, division, itemsize),)
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


def _divided(region: Region, dims: list[_Dim], division: Division, itemsize: int) -> Region:
    """Say how a block may be divided, as far as the order of the dimensions in memory allows it."""
    if len(dims) != 4:
        return region
    kernel_blocks, heads, tokens, content = dims
    region = replace(region, kernel_blocks=kernel_blocks.size // region.num_blocks)
    row = content.size * itemsize
    if heads.size == 1 or heads.stride == tokens.size * content.size:
        region = replace(region, heads=heads.size, total_heads=division.total_heads)
    else:
        row *= heads.size  # a token's heads lie side by side
    in_order = tokens.size == 1 or tokens.stride * itemsize == row
    sections = ((1, row),) if division.sections is None and in_order else division.sections or ()
    fits = sum(count * size for count, size in sections) == row
    return replace(region, sections=sections if fits else ())


def _is_dense(dims: Iterable[_Dim]) -> bool:
    """Whether the dimensions, in some order, cover one contiguous run of elements."""
    expected = 1
    for dim in sorted((d for d in dims if d.size != 1), key=lambda d: d.stride):
        if dim.stride != expected:
            return False
        expected *= dim.size
    return True


def unique_regions(regions: Iterable[Region]) -> tuple[Region, ...]:
    """Keep the first of each set of aliases (layers of one group that share KV), in order.

    Raises `LayoutError` if two start at the same address with the same stride and hold blocks of different sizes.
    """
    kept: dict[tuple[int, int, int], Region] = {}
    for region in regions:
        first = kept.setdefault((region.group, region.base_addr, region.stride_bytes), region)
        if first.block_bytes != region.block_bytes:
            raise LayoutError(f"{first} and {region} share memory but not the size of a block")
    return tuple(kept.values())


def storage_spans(regions: Iterable[Region], borders: Collection[int] = ()) -> list[Span]:
    """Return the memory under `regions` as the fewest spans, sorted; regions that touch or interleave share one.

    No two share one across a border, the address at which another allocation begins: a card registers memory of one.
    """
    spans: list[Span] = []
    for start, end in sorted((region.base_addr, region.end_addr) for region in regions):
        if spans and (start < sum(spans[-1]) or (start == sum(spans[-1]) and start not in borders)):
            first, length = spans[-1]
            spans[-1] = (first, max(length, end - first))
        else:
            spans.append((start, end - start))
    return spans
