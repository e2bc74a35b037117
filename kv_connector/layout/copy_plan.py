"""From pairs of blocks to the fewest byte copies.

Blocks that follow each other on both sides travel as one copy, since a descriptor costs 40 to 70 µs whatever its size.
Which blocks do depends on the ids alone, so `plan_layers` finds the runs once and lays them over every region. The
order of copies within a push is free: pairs are sorted by source first, since vLLM frees a request from its end, and
blocks that are used again come in falling order.

A plan is kept as columns of numbers and becomes `Copy` tuples only in an iteration: to make 100,000 of them takes
longer than to plan them, and an engine takes no more at a time than may be in flight.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from baton.kv_connector.errors import BlockOutOfRange, LayoutError
from baton.kv_connector.layout.regions import Region

if TYPE_CHECKING:
    from baton.kv_connector.layout.pairing import RegionPair

_Ids = npt.NDArray[np.int64]

_FEW = 128  # below so many blocks a Python loop is faster than the fixed cost of numpy


class Copy(NamedTuple):
    """One run of bytes to write: device addresses and a length in bytes."""

    src: int
    dst: int
    length: int


_copy = partial(tuple.__new__, Copy)  # what `Copy._make` does, but in C: half the time of a long plan


class Columns(NamedTuple):
    """Some copies, shape `[n]` each: lists of int or memory views of int64, so that either gives plain ints."""

    src: Sequence[int]
    dst: Sequence[int]
    length: Sequence[int]


class CopyPlan:
    """Copies in the order in which they are to be made; what it says of all of them is known without iterating."""

    __slots__ = ("columns", "count", "total_bytes")

    def __init__(self, columns: Sequence[Columns], total_bytes: int) -> None:
        """`total_bytes` is the sum of all lengths."""
        self.columns = columns
        self.total_bytes = total_bytes
        self.count = sum([len(part.src) for part in columns])

    @classmethod
    def of(cls, copies: Iterable[Copy]) -> Self:
        made = list(copies)
        columns = Columns([c.src for c in made], [c.dst for c in made], [c.length for c in made])
        return cls([columns], sum(columns.length))

    @classmethod
    def joined(cls, plans: Iterable["CopyPlan"]) -> Self:
        parts = list(plans)
        return cls([columns for plan in parts for columns in plan.columns], sum([plan.total_bytes for plan in parts]))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Copy]:
        for columns in self.columns:
            yield from map(_copy, zip(*columns, strict=True))


def plan_layers(
    pairs: Sequence[tuple[Region, Region]], src_blocks: Sequence[int], dst_blocks: Sequence[int]
) -> CopyPlan:
    """Plan the copies of the same blocks in several regions, as Mooncake's `transfer_submit_write` takes them.

    Args:
        pairs: `(source, destination)` regions, one pair per layer or part of one.
        src_blocks: Scheduler-block ids in the source regions, shape `[n]`, in prompt order.
        dst_blocks: Scheduler-block ids in the destination regions, shape `[n]`; block i is copied to block i.

    Returns:
        Per pair, in order, up to n copies whose lengths add up to `n * block_bytes`; by source where blocks join.

    Raises:
        BlockOutOfRange: an id lies outside its region.
        LayoutError: the lists differ in length, or two regions in the bytes of a block.
    """
    if len(src_blocks) != len(dst_blocks):
        raise LayoutError(f"{len(src_blocks)} source blocks cannot fill {len(dst_blocks)} destination blocks")
    if not len(src_blocks) or not pairs:
        return CopyPlan((), 0)
    runs_of = _FewRuns if len(src_blocks) < _FEW else _ManyRuns
    blocks = runs_of.single(src_blocks, dst_blocks)
    src_bounds, dst_bounds = blocks.bounds()
    for src, dst in pairs:
        _check_range(src_bounds, src)
        _check_range(dst_bounds, dst)
        _check_sizes(src, dst)
    dense = [src.is_dense and dst.is_dense for src, dst in pairs]
    runs = blocks.coalesce() if any(dense) else blocks
    columns = [(runs if joins else blocks).lay(*pair) for pair, joins in zip(pairs, dense, strict=True)]
    return CopyPlan(columns, len(src_blocks) * sum([src.block_bytes for src, _ in pairs]))


def plan_units(
    pairs: "Sequence[RegionPair]", src_blocks: Sequence[int], dst_blocks: Sequence[int], phases: Sequence[int]
) -> CopyPlan:
    """Plan the copies of the same units in several regions; see `pairing`. Raises as `plan_layers` does.

    Args:
        pairs: Regions and their strips.
        src_blocks: Of each unit the scheduler block in which it lies here, shape `[n]`, in prompt order.
        dst_blocks: Likewise there.
        phases: Which unit of the larger block it is, shape `[n]`.

    Returns:
        Per pair, in order: copies whose lengths add up to those of the units' strips; none if there are no units.
    """
    if all(pair.whole for pair in pairs):
        return plan_layers([(pair.src, pair.dst) for pair in pairs], src_blocks, dst_blocks)
    if not len(src_blocks) == len(dst_blocks) == len(phases):
        raise LayoutError(f"{len(phases)} units in {len(src_blocks)} and {len(dst_blocks)} blocks")
    if not len(phases):  # the units have no block: those of a block of several places lie in the last one's
        return CopyPlan((), 0)
    blocks = _ManyRuns.single(src_blocks, dst_blocks)
    src_bounds, dst_bounds = blocks.bounds()
    phase_of = np.asarray(phases, np.int64)
    units = [(phase, phase_of == phase) for phase in np.unique(phase_of)]
    columns = []
    for pair in pairs:
        _check_range(src_bounds, pair.src)
        _check_range(dst_bounds, pair.dst)
        columns += [_lay_strips(pair, blocks, which, pair.strips[phase]) for phase, which in units]
    return CopyPlan(columns, int(sum([sum(part.length) for part in columns])))


def _lay_strips(
    pair: "RegionPair", blocks: "_ManyRuns", which: npt.NDArray[np.bool_], strips: Sequence[Any]
) -> Columns:
    """Place the strips of some units, unit by unit."""
    table = np.asarray(strips, np.int64)  # shape `[strips, 3]`
    src = pair.src.base_addr + blocks.src[which, np.newaxis] * pair.src.stride_bytes + table[:, 0]
    dst = pair.dst.base_addr + blocks.dst[which, np.newaxis] * pair.dst.stride_bytes + table[:, 1]
    lengths = np.broadcast_to(table[:, 2], src.shape)
    return Columns(src.ravel().data, dst.ravel().data, lengths.ravel().data)


class _Bounds(NamedTuple):
    """The smallest and the largest id of a block table."""

    low: int
    high: int


def _check_range(ids: _Bounds, region: Region) -> None:
    if ids.low < 0 or ids.high >= region.num_blocks:
        bad = ids.low if ids.low < 0 else ids.high
        raise BlockOutOfRange(f"block {bad} is not in {region.name}, which has {region.num_blocks} blocks")


def _check_sizes(src: Region, dst: Region) -> None:
    if src.block_bytes != dst.block_bytes:
        raise LayoutError(
            f"a block has {src.block_bytes} B in {src.name} here and {dst.block_bytes} B in {dst.name} there"
        )


class _FewRuns(NamedTuple):
    """Runs of blocks, shape `[runs]` each: first source block, first destination block, number of blocks."""

    src: list[int]
    dst: list[int]
    blocks: list[int]

    @classmethod
    def single(cls, src: Sequence[int], dst: Sequence[int]) -> "_FewRuns":
        """Every block is a run of its own."""
        return cls(list(src), list(dst), [1] * len(src))

    def coalesce(self) -> "_FewRuns":
        """Join blocks that follow each other on both sides, in whatever order they are given."""
        runs = _FewRuns([], [], [])
        next_src = next_dst = -1
        for src, dst in sorted(zip(self.src, self.dst, strict=True)):
            if src == next_src and dst == next_dst:
                runs.blocks[-1] += 1
            else:
                runs.src.append(src)
                runs.dst.append(dst)
                runs.blocks.append(1)
            next_src, next_dst = src + 1, dst + 1
        return runs

    def bounds(self) -> tuple[_Bounds, _Bounds]:
        return _Bounds(min(self.src), max(self.src)), _Bounds(min(self.dst), max(self.dst))

    def lay(self, src: Region, dst: Region) -> Columns:
        src_addr, src_stride, dst_addr, dst_stride = src.base_addr, src.stride_bytes, dst.base_addr, dst.stride_bytes
        return Columns(
            [src_addr + block * src_stride for block in self.src],
            [dst_addr + block * dst_stride for block in self.dst],
            [blocks * src.block_bytes for blocks in self.blocks],
        )


class _ManyRuns(NamedTuple):
    """The same as `_FewRuns`, for long block tables."""

    src: _Ids
    dst: _Ids
    blocks: _Ids

    @classmethod
    def single(cls, src: Sequence[int], dst: Sequence[int]) -> "_ManyRuns":
        return cls(np.asarray(src, np.int64), np.asarray(dst, np.int64), np.ones(len(src), np.int64))

    def coalesce(self) -> "_ManyRuns":
        src, dst = self.src, self.dst
        if (src[1:] < src[:-1]).any():
            order = np.argsort(src)
            src, dst = src[order], dst[order]
        breaks = np.flatnonzero((np.diff(src) != 1) | (np.diff(dst) != 1)) + 1
        starts = np.concatenate(([0], breaks))
        return _ManyRuns(src[starts], dst[starts], np.diff(starts, append=len(src)))

    def bounds(self) -> tuple[_Bounds, _Bounds]:
        src, dst = self.src, self.dst
        return _Bounds(int(src.min()), int(src.max())), _Bounds(int(dst.min()), int(dst.max()))

    def lay(self, src: Region, dst: Region) -> Columns:
        return Columns(
            (src.base_addr + self.src * src.stride_bytes).data,
            (dst.base_addr + self.dst * dst.stride_bytes).data,
            (self.blocks * src.block_bytes).data,
        )
