"""Where the tensors of one step lie in one slot: plain integers.

    slot  [ ids ....... |pad| logprobs ... |pad| ranks .. |pad|            ]
          0                 64                 …              size_bytes

Each tensor begins at a multiple of 64 bytes and keeps its dtype, so that a part of the slot can be viewed as what it
is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

ALIGNMENT_BYTES = 64
ID_BYTES = 8  # a sampler's widest dtype
COUNTS = 4  # for each sequence: what is no number, what was sampled, accepted, and drafted
TOP_LOGPROB_BYTES = 12  # a token id of at most 8 bytes, and a float32
DEFAULT_TOP_LOGPROBS = 20  # vLLM's own default of the most that a request may ask for


class Extent(NamedTuple):
    """Where one tensor lies."""

    offset_bytes: int
    size_bytes: int


class Packing(NamedTuple):
    """Where all of them lie, in their order."""

    extents: tuple[Extent, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a step can bring at most, as far as the engine's limits say it."""

    max_num_seqs: int
    speculative_tokens: int = 0
    top_logprobs: int = DEFAULT_TOP_LOGPROBS

    @property
    def slot_bytes(self) -> int:
        """Room for ids, drafts, counts, and logprobs of every token; a step that needs more gets a larger slot."""
        rows = self.max_num_seqs * (1 + self.speculative_tokens)
        ids, drafts = rows * ID_BYTES, self.max_num_seqs * self.speculative_tokens * ID_BYTES
        counts = [self.max_num_seqs * ID_BYTES] * COUNTS
        tops = rows * (self.top_logprobs + 1) * TOP_LOGPROB_BYTES
        ranks = rows * ID_BYTES
        return pack((ids, drafts, *counts, tops * 2 // 3, tops // 3, ranks)).size_bytes


def pack(sizes_bytes: Iterable[int]) -> Packing:
    """Lay tensors of these sizes one behind the other."""
    extents, end = [], 0
    for size_bytes in sizes_bytes:
        start = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        extents.append(Extent(start, size_bytes))
        end = start + size_bytes
    return Packing(tuple(extents), end)
