"""Which bytes of a block here are which bytes of a block there: the layouts of one P rank and one D rank, compared.

The two may divide the model's layers, heads and tokens differently: other pipeline stages, other tensor-parallel sizes,
blocks of another number of tokens. What both have in common travels in *units*, the tokens of the smaller block; a unit of one region is a
few *strips*, runs of bytes that lie in one piece on either side. Where nothing differs, both are the whole block.

Pure, plain integers. `pair` refuses what cannot be mapped, before any byte moves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from baton.contracts.kv_transfer import MAX_GRID
from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.regions import Region, Sections
from baton.kv_connector.layout.state_parts import check_state, parts_in, pieces_between
from baton.kv_connector.layout.tp_mapping import fits, heads_between, heads_of
from baton.kv_connector.layout.windows import EVERYTHING, OF_A_STATE
from baton.kv_connector.protocol.messages import Rank

MAX_PIECES = 65_536  # of a region's larger block; Qwen3-8B's in blocks of 16 and 128 tokens on a CPU: 8,256
MAX_BLOCK_RATIO = 64  # tokens of the larger block to those of the smaller


class Side(NamedTuple):
    """The layout of one of the two ranks."""

    rank: Rank
    regions: Sequence[Region]
    block_tokens: int  # of a scheduler block


class ByteRange(NamedTuple):
    """One run of bytes of a unit: its place in the block on either side, and its length, in bytes."""

    src: int
    dst: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPair:
    """One region of P and the one of the same name of D."""

    src: Region
    dst: Region
    heads: int  # that travel; of a state that is divided: parts
    # Per unit of the larger block; unit i of a prompt is the one at i modulo their number.
    strips: tuple[tuple[ByteRange, ...], ...]

    @property
    def copies(self) -> int:
        return max(map(len, self.strips))

    @property
    def whole(self) -> bool:
        """Whether a unit is a whole block on both sides, so that blocks in a row are one run of bytes."""
        size = self.src.block_bytes
        return size == self.dst.block_bytes and self.strips == ((ByteRange(0, 0, size),),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """What one P rank and one D rank have in common."""

    regions: tuple[RegionPair, ...]  # in P's order
    src_block_tokens: int
    dst_block_tokens: int

    @property
    def unit_tokens(self) -> int:
        return min(self.src_block_tokens, self.dst_block_tokens)

    @property
    def shares(self) -> int:
        """Pairs of region and head that travel: added up over all P ranks it must be everything that D's target has."""
        return sum(pair.heads for pair in self.of_target)

    @property
    def of_target(self) -> list[RegionPair]:
        """The pairs that D relies on, hence all but a drafter's."""
        return [pair for pair in self.regions if not pair.src.drafter]

    @property
    def layers(self) -> tuple[int, ...]:
        """P's layers of which something travels."""
        return tuple(dict.fromkeys(pair.src.layer for pair in self.regions))

    @property
    def whole(self) -> bool:
        """Whether whole blocks travel, to blocks of the same size."""
        return self.src_block_tokens == self.dst_block_tokens and all(pair.whole for pair in self.of_target)

    def of_layer(self, layer: int) -> list[RegionPair]:
        return [pair for pair in self.regions if pair.src.layer == layer]


def shares_of(side: Side, other_tp_size: int) -> int:
    """Return how many pairs of region and head a rank has; a drafter's do not count, as D can do without.

    A state counts part by part where the other node's ranks divide it otherwise, else as one.
    """
    is_divided = side.rank.tp_size != other_tp_size
    return sum(
        parts_in(region.state_parts, side.rank) if region.state_parts and is_divided else region.heads
        for region in side.regions
        if not region.drafter
    )


def pair(source: Side, target: Side) -> Pairing:
    """Compare a P rank with a D rank; a drafter's regions travel where both have the same and its blocks can be mapped.

    Raises `LayoutError` with the first difference if some bytes of a region that both have cannot be mapped.
    """
    source, target = _without_strangers(source, target), _without_strangers(target, source)
    if source.rank.pp_size == target.rank.pp_size == 1 and len(source.regions) != len(target.regions):
        raise LayoutError(
            f"{len(source.regions)} KV regions in the prefill rank, {len(target.regions)} in the decode rank"
        )
    for side in (source, target):
        _check(side)
    theirs = {region.name: region for region in target.regions}
    common = [(region, theirs[region.name]) for region in source.regions if region.name in theirs]
    ours = {region.name for region in source.regions}
    if target.rank.pp_size == 1 and (missing := ours - theirs.keys()):
        raise LayoutError(f"KV region {min(missing)!r} of the prefill rank is unknown to the decode rank")
    if source.rank.pp_size == 1 and (missing := theirs.keys() - ours):
        raise LayoutError(f"KV region {min(missing)!r} of the decode rank is unknown to the prefill rank")
    pairs = (_pair_draft if src.drafter else _pair for src, _ in common)
    made = (make(src, dst, source, target) for make, (src, dst) in zip(pairs, common, strict=True))
    return Pairing(
        regions=tuple(found for found in made if found is not None),
        src_block_tokens=source.block_tokens,
        dst_block_tokens=target.block_tokens,
    )


def _without_strangers(mine: Side, other: Side) -> Side:
    """Leave out regions of a drafter that the other side has not."""
    known = {(region.name, region.drafter) for region in other.regions}
    kept = [region for region in mine.regions if not region.drafter or (region.name, region.drafter) in known]
    return mine._replace(regions=kept)


def _check(side: Side) -> None:
    """What a peer says of itself decides how much work it is to compare with it."""
    tp, tp_size, pp, pp_size = side.rank.tp, side.rank.tp_size, side.rank.pp, side.rank.pp_size
    if not (tp < tp_size <= MAX_GRID and pp < pp_size <= MAX_GRID):
        raise LayoutError(f"{side.rank} is no rank of any grid")
    for region in side.regions:
        tokens = side.block_tokens * region.places
        if tokens < 1 or tokens % region.kernel_blocks:
            raise LayoutError(f"{region.name}: a block of {tokens} tokens cannot have {region.kernel_blocks} parts")
        if region.total_heads and not fits(region.total_heads, tp_size):
            raise LayoutError(f"{region.name}: {region.total_heads} KV heads cannot be divided among {tp_size} ranks")
        if region.state_parts:
            check_state(region, side.rank)


class _Slabs(NamedTuple):
    """How one side keeps a head's tokens."""

    kernel_tokens: int
    kernel_bytes: int
    slab_bytes: int
    first_head: int  # of this rank

    def place(self, head: int, before: int, size: int, token: int) -> int:
        """Return where in a block a token of a section lies, bytes; `before` and `size` as `_each` yields them."""
        kernel, within = divmod(token, self.kernel_tokens)
        slab = kernel * self.kernel_bytes + (head - self.first_head) * self.slab_bytes
        return slab + before * self.kernel_tokens + within * size


def _pair(src: Region, dst: Region, source: Side, target: Side) -> RegionPair | None:
    """Pair two regions; `None` if another rank serves this one's heads."""
    if _is_state(src, dst) and source.rank.tp_size != target.rank.tp_size:
        return _pair_state(src, dst, source, target)
    heads = _heads(src, dst, source.rank, target.rank)
    if not heads:
        return None
    _check_blocks(src, dst, source, target)
    ours, others = (_slabs(src, source), _slabs(dst, target))
    if source.block_tokens == target.block_tokens and ours.kernel_tokens == others.kernel_tokens:
        if ours.slab_bytes != others.slab_bytes:
            raise LayoutError(_differ(src, "B for the tokens of a kernel block", ours.slab_bytes, others.slab_bytes))
        strips: tuple[tuple[ByteRange, ...], ...] = (_joined(_aligned(heads, src.kernel_blocks, ours, others)),)
    else:
        strips = _resized(heads, src, dst, source, target)
    return RegionPair(src=src, dst=dst, heads=len(heads), strips=strips)


def _is_state(src: Region, dst: Region) -> bool:
    return bool(src.state_parts or dst.state_parts) or src.window == dst.window == OF_A_STATE


def _pair_state(src: Region, dst: Region, source: Side, target: Side) -> RegionPair | None:
    """Pair two regions that keep states, of nodes with different tensor-parallel sizes."""
    pieces = pieces_between(src, dst, source.rank, target.rank)
    if not pieces:
        return None
    _check_blocks(src, dst, source, target)
    strips = _joined(ByteRange(piece.src, piece.dst, piece.length) for piece in pieces)
    return RegionPair(src=src, dst=dst, heads=sum(piece.parts for piece in pieces), strips=(strips,))


def _check_blocks(src: Region, dst: Region, source: Side, target: Side) -> None:
    if src.window != dst.window:
        raise LayoutError(_differ(src, "tokens in the attention window", src.window, dst.window))
    if src.places != dst.places:
        raise LayoutError(_differ(src, "scheduler blocks in a block", src.places, dst.places))
    if (src.window != EVERYTHING or src.places > 1) and source.block_tokens != target.block_tokens:
        raise LayoutError(
            _differ(
                src,
                "tokens in a block of a layer with a window, long blocks or a state",
                source.block_tokens,
                target.block_tokens,
            )
        )


def _pair_draft(src: Region, dst: Region, source: Side, target: Side) -> RegionPair | None:
    """Pair two regions of a drafter; `None` as well where they cannot be mapped: D drafts worse then."""
    try:
        return _pair(src, dst, source, target)
    except LayoutError:
        return None


def _heads(src: Region, dst: Region, prefill: Rank, decode: Rank) -> range:
    """Return the heads that travel, numbered through the model."""
    if src.total_heads != dst.total_heads:
        raise LayoutError(_differ(src, "KV heads in all", src.total_heads, dst.total_heads))
    if src.total_heads == 0:  # a block cannot be divided: rank meets rank of the same number
        if prefill.tp_size != decode.tp_size:
            raise LayoutError(
                f"{src.name}: tensor-parallel sizes {prefill.tp_size} and {decode.tp_size} need a KV layout that keeps "
                "each head's tokens together (on CUDA: VLLM_KV_CACHE_LAYOUT=HND on both nodes)"
            )
        return range(prefill.tp == decode.tp)
    for region, rank in ((src, prefill), (dst, decode)):
        expected = len(heads_of(region.total_heads, rank.tp_size, rank.tp))
        if region.heads != expected:
            raise LayoutError(
                f"{region.name}: {region.heads} KV heads in a rank of {rank.tp_size}, {expected} would be its part of "
                f"{region.total_heads}"
            )
    return heads_between(src.total_heads, (prefill.tp_size, prefill.tp), (decode.tp_size, decode.tp))


def _slabs(region: Region, side: Side) -> _Slabs:
    kernel_bytes = region.block_bytes // region.kernel_blocks
    first = heads_of(region.total_heads, side.rank.tp_size, side.rank.tp).start if region.total_heads else 0
    kernel_tokens = side.block_tokens * region.places // region.kernel_blocks
    return _Slabs(kernel_tokens, kernel_bytes, kernel_bytes // region.heads, first)


def _aligned(heads: range, kernel_blocks: int, src: _Slabs, dst: _Slabs) -> Iterator[ByteRange]:
    """Blocks of the same size: each kernel block's heads in one piece."""
    for kernel in range(kernel_blocks):
        yield ByteRange(
            kernel * src.kernel_bytes + (heads.start - src.first_head) * src.slab_bytes,
            kernel * dst.kernel_bytes + (heads.start - dst.first_head) * dst.slab_bytes,
            len(heads) * src.slab_bytes,
        )


def _resized(heads: range, src: Region, dst: Region, source: Side, target: Side) -> tuple[tuple[ByteRange, ...], ...]:
    """Blocks of different sizes: each section of each head in pieces of the smaller kernel block."""
    ours, others = _slabs(src, source), _slabs(dst, target)
    grain, larger = sorted((ours.kernel_tokens, others.kernel_tokens))
    if not src.sections or not dst.sections:
        raise LayoutError(
            f"{src.name}: blocks of {source.block_tokens} and {target.block_tokens} tokens need a KV layout that keeps "
            "a head's tokens in order; give both nodes the same --block-size"
        )
    if src.sections != dst.sections:
        raise LayoutError(_differ(src, "B for a token of a head", src.token_bytes, dst.token_bytes))
    if larger % grain:
        raise LayoutError(_differ(src, "tokens in a kernel block", ours.kernel_tokens, others.kernel_tokens))
    unit, larger_block = sorted((source.block_tokens, target.block_tokens))
    if larger_block % unit or larger_block > MAX_BLOCK_RATIO * unit:
        raise LayoutError(_differ(src, "tokens in a block", source.block_tokens, target.block_tokens))
    pieces = len(heads) * sum(count for count, _ in src.sections) * (larger_block // grain)
    if pieces > MAX_PIECES:
        raise LayoutError(
            f"{src.name}: {pieces} pieces in each block are too many; give both nodes the same --block-size"
        )
    return _strips(heads, src.sections, ours, others, (source.block_tokens, target.block_tokens))


@lru_cache(maxsize=64)  # the same for all layers
def _strips(
    heads: range, sections: Sections, src: _Slabs, dst: _Slabs, block_tokens: tuple[int, int]
) -> tuple[tuple[ByteRange, ...], ...]:
    grain = min(src.kernel_tokens, dst.kernel_tokens)
    unit, larger_block = sorted(block_tokens)

    def strips(phase: int) -> Iterator[ByteRange]:
        src_token, dst_token = (phase * unit % tokens for tokens in block_tokens)
        for head in heads:
            for before, size in _each(sections):
                for token in range(0, unit, grain):
                    yield ByteRange(
                        src.place(head, before, size, src_token + token),
                        dst.place(head, before, size, dst_token + token),
                        grain * size,
                    )

    return tuple(_joined(strips(phase)) for phase in range(larger_block // unit))


def _each(sections: Sections) -> Iterator[tuple[int, int]]:
    """Yield each section as the bytes of one token in all sections before it, and in it."""
    before = 0
    for count, size in sections:
        for _ in range(count):
            yield before, size
            before += size


def _joined(strips: Iterator[ByteRange]) -> tuple[ByteRange, ...]:
    """Join strips that follow each other on both sides."""
    joined: list[ByteRange] = []
    for strip in strips:
        last = joined[-1] if joined else ByteRange(-1, -1, 0)
        if (last.src + last.length, last.dst + last.length) == (strip.src, strip.dst):
            joined[-1] = ByteRange(last.src, last.dst, last.length + strip.length)
        else:
            joined.append(strip)
    return tuple(joined)


def _differ(region: Region, what: str, ours: int, others: int) -> str:
    return f"KV region {region.name!r}: {ours} {what} in the prefill rank, {others} in the decode rank"
