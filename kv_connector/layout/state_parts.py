"""A recurrent layer's state between ranks that divide it otherwise: which of its parts travel, and where they lie.

A rank's state is a row of *runs*. Of each it has a range of *parts*, as it has a range of KV heads (`tp_mapping.py`):
heads of x and of the temporal state, groups of B and C. What every rank has whole is one part with replicas.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.regions import Region, StateParts
from baton.kv_connector.layout.tp_mapping import fits, heads_between, heads_of
from baton.kv_connector.protocol.messages import Rank


class Piece(NamedTuple):
    """Some parts of one run: where they begin in either block, bytes, and how many they are."""

    src: int
    dst: int
    length: int
    parts: int


@lru_cache(maxsize=64)  # the same for all layers
def parts_in(state_parts: StateParts, rank: Rank) -> int:
    return sum(len(heads_of(parts, rank.tp_size, rank.tp)) for _, parts in state_parts)


def check_state(region: Region, rank: Rank) -> None:
    """Raise `LayoutError` unless a block has just this rank's parts."""
    divides = all(fits(parts, rank.tp_size) for _, parts in region.state_parts)
    expected = sum(size * len(heads_of(parts, rank.tp_size, rank.tp)) for size, parts in region.state_parts)
    if not divides or region.block_bytes != expected:
        raise LayoutError(
            f"{region.name}: a state of {region.block_bytes} B in a rank of {rank.tp_size}, whose parts would have {expected} B"
        )


def pieces_between(src: Region, dst: Region, prefill: Rank, decode: Rank) -> list[Piece]:
    """Return what travels between two ranks of nodes with different tensor-parallel sizes, in the block's order.

    Raises `LayoutError` if one of them does not say of what parts its state consists, or if they differ.
    """
    if not (src.state_parts and dst.state_parts):
        raise LayoutError(
            f"{src.name}: tensor-parallel sizes {prefill.tp_size} and {decode.tp_size} need to know how a layer divides its "
            "state, which one of the nodes does not say: give both nodes the same -tp"
        )
    if src.state_parts != dst.state_parts:
        raise LayoutError(f"KV region {src.name!r}: the two ranks' states consist of other parts")
    return list(_pieces(src, prefill, decode))


def _pieces(region: Region, prefill: Rank, decode: Rank) -> Iterator[Piece]:
    src = dst = 0
    for size, parts in region.state_parts:
        ours, others = heads_of(parts, prefill.tp_size, prefill.tp), heads_of(parts, decode.tp_size, decode.tp)
        travels = heads_between(parts, (prefill.tp_size, prefill.tp), (decode.tp_size, decode.tp))
        if travels:
            begin = travels.start
            yield Piece(
                src + (begin - ours.start) * size,
                dst + (begin - others.start) * size,
                len(travels) * size,
                len(travels),
            )
        src += len(ours) * size
        dst += len(others) * size
