"""Where a step's tensors lie in a slot."""

import pytest

from baton.model_runner.tokens.packing import ALIGNMENT_BYTES, most_bytes, pack


def test_tensors_lie_one_behind_the_other_and_aligned() -> None:
    """None begins where it could not be viewed as its dtype, and none overlaps the next."""
    packing = pack((4, 100, 8))

    assert packing.offsets_bytes == (0, ALIGNMENT_BYTES, 3 * ALIGNMENT_BYTES)
    assert packing.size_bytes == 3 * ALIGNMENT_BYTES + 8


def test_nothing_needs_no_room() -> None:
    """A step without tensors has no extents."""
    assert pack(()).size_bytes == 0


@pytest.mark.parametrize("speculative_tokens", [0, 3])
def test_a_slot_holds_what_the_engine_may_bring(speculative_tokens: int) -> None:
    """Ids of the widest dtype for each sequence and draft, their counts, and logprobs of each token."""
    found = most_bytes(max_num_seqs=300, speculative_tokens=speculative_tokens, top_logprobs=5)
    rows = 300 * (1 + speculative_tokens)

    drafts, counts = 300 * speculative_tokens * 8, [300 * 8] * 4
    needed = pack((rows * 8, drafts, *counts, rows * 6 * 8, rows * 6 * 4, rows * 8))

    assert found >= needed.size_bytes
