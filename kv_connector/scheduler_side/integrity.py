"""Do the three views of the block pool agree? Plain numbers in, findings out.

|                              | references of a block          | what it says            |
|------------------------------|--------------------------------|-------------------------|
| vLLM's block pool            | their number, and the free list | may it be given away    |
| vLLM's scheduler             | one per request that has it    | who computes on it      |
| the connector's ledger       | one per reservation            | a peer may write to it  |

The numbers must add up, and a block is in the free list exactly if it has no reference.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.int64]


class Wrong(StrEnum):
    """What can be wrong with a block, most dangerous first."""

    WRITABLE = "is free, but a peer may still write to it"
    FREE = "is free, but in use"
    CROWDED = "has more owners than references"
    NOBODY = "is in use, but nobody owns it"
    UNACCOUNTED = "has more references than owners"
    LOST = "is neither free nor in use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """One look at everything. Block ids count from 0; the null block is left out everywhere."""

    references: Sequence[int]  # by block id, as the pool counts them
    free: Iterable[int]  # the free list
    null: int = 0  # a placeholder that vLLM does not count
    requests: Mapping[str, Sequence[int]] | None  # the scheduler's: request → blocks; None: it cannot be looked into
    reservations: Mapping[str, Sequence[int]]  # the ledger's: request → blocks that its peer may write to


class Finding(NamedTuple):
    """One block with which something is wrong."""

    block: int
    wrong: Wrong
    references: int
    owners: tuple[str, ...]


def compare(views: Views) -> list[Finding]:
    """Return everything that does not add up, by block. A block has one finding: the most dangerous."""
    size = len(views.references)
    references = np.asarray(views.references, np.int64)
    reserved = _count(views.reservations, size)
    owned = reserved + _count(views.requests or {}, size)
    free = np.zeros(size, np.bool_)
    free[list(views.free)] = True
    found = {
        Wrong.WRITABLE: free & (reserved > 0),
        Wrong.FREE: free & ((references > 0) | (owned > 0)),
        Wrong.CROWDED: owned > references,
        Wrong.LOST: ~free & (references == 0) & (owned == 0),
    }
    if views.requests is not None:
        found[Wrong.NOBODY] = (references > 0) & (owned == 0)
        found[Wrong.UNACCOUNTED] = references > owned
    wrong: dict[int, Wrong] = {}
    for kind in Wrong:
        for block in np.flatnonzero(found[kind]) if kind in found else ():
            wrong.setdefault(int(block), kind)
    wrong.pop(views.null, None)
    owners = _owners(views, wrong)
    return [Finding(block, wrong[block], int(references[block]), owners[block]) for block in sorted(wrong)]


def _count(owners: Mapping[str, Sequence[int]], size: int) -> _Numbers:
    blocks = [block for ids in owners.values() for block in ids]
    return np.bincount(np.asarray(blocks, np.int64), minlength=size)[:size]


def _owners(views: Views, blocks: Iterable[int]) -> dict[int, tuple[str, ...]]:
    wanted: dict[int, list[str]] = {block: [] for block in blocks}
    for prefix, view in (("request ", views.requests or {}), ("a peer's writes for ", views.reservations)):
        for name, ids in view.items() if wanted else ():
            for block in wanted.keys() & set(ids):
                wanted[block].append(prefix + name)
    return {block: tuple(names) for block, names in wanted.items()}
