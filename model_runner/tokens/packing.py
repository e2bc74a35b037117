"""Where the tensors of one step lie in one slot: plain integers.

    slot  [ ids ....... |pad| logprobs ... |pad| ranks .. |pad|            ]
          0                 64                 …              size_bytes

Each tensor begins at a multiple of 64 bytes and keeps its dtype, so that a part of the slot can be viewed as it is.
"""

from collections.abc import Iterable
from typing import NamedTuple

ALIGNMENT_BYTES = 64
ID_BYTES = 8  # a sampler's widest dtype
COUNTS = 4  # for each sequence: what is no number, what was sampled, accepted, and drafted
TOP_LOGPROB_BYTES = 12  # a token id of at most 8 bytes, and a float32
DEFAULT_TOP_LOGPROBS = 20  # vLLM's own default of the most that a request may ask for


class Packing(NamedTuple):
    """Where a step's tensors lie in a slot."""

    offsets_bytes: tuple[int, ...]  # in their order
    size_bytes: int


def most_bytes(*, max_num_seqs: int, speculative_tokens: int = 0, top_logprobs: int = DEFAULT_TOP_LOGPROBS) -> int:
    """Return the room for ids, drafts, counts, and logprobs of every token, as far as an engine's limits say it."""
    rows = max_num_seqs * (1 + speculative_tokens)
    ids, drafts = rows * ID_BYTES, max_num_seqs * speculative_tokens * ID_BYTES
    counts = [max_num_seqs * ID_BYTES] * COUNTS
    tops = rows * (top_logprobs + 1) * TOP_LOGPROB_BYTES
    ranks = rows * ID_BYTES
    return pack((ids, drafts, *counts, tops * 2 // 3, tops // 3, ranks)).size_bytes


def pack(sizes_bytes: Iterable[int]) -> Packing:
    """Lay tensors of these sizes one behind the other."""
    offsets, end = [], 0
    for size_bytes in sizes_bytes:
        offsets.append(-(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        end = offsets[-1] + size_bytes
    return Packing(tuple(offsets), end)
