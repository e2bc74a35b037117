"""Which blocks a window leaves: compared with vLLM's own manager on both nodes, over every length about a block's edge."""

from typing import Any

import pytest
import torch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.single_type_kv_cache_manager import ChunkedLocalAttentionManager, SlidingWindowManager
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, SlidingWindowSpec

from baton.kv_connector.layout.groups import CACHED_STATES, STATE, Group, hits_may_diverge, least_tokens
from baton.kv_connector.layout.windows import EVERYTHING, OF_A_STATE, first_read_block, window_of_chunk

BLOCK = 4
WINDOWS = (2, 3, 4, 5, 7, 8, 9, 13, *map(window_of_chunk, (4, 6, 8, 12)))
CASES = [(tokens, window) for window in WINDOWS for tokens in range(2, 30)]


def manager(window: int) -> Any:
    """VLLM's manager of one group."""
    common: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}
    kind: Any = ChunkedLocalAttentionManager if window < 0 else SlidingWindowManager
    spec = (
        ChunkedLocalAttentionSpec(attention_chunk_size=-window, **common)
        if window < 0
        else SlidingWindowSpec(sliding_window=window, **common)
    )
    return kind(
        spec,
        block_pool=BlockPool(64, enable_caching=True, hash_block_size=BLOCK),
        enable_caching=True,
        kv_cache_group_id=0,
        scheduler_block_size=BLOCK,
    )


def places(table: Any) -> list[int]:
    return [place for place, block in enumerate(table) if not block.is_null]


def read_by_the_last(tokens: int, window: int) -> list[int]:
    """Blocks that the last token reads, itself apart: straight from what a window, or a chunk, is."""
    last = tokens - 1
    first = last - last % -window if window < 0 else max(0, tokens - window)
    return sorted({token // BLOCK for token in range(first, last)})


@pytest.mark.parametrize("window", [EVERYTHING, OF_A_STATE, 1, 9, *map(window_of_chunk, (1, 4))])
def test_a_prompt_of_no_or_one_token_starts_at_the_first_block(window: int) -> None:
    assert [first_read_block(tokens, window, 1) for tokens in (0, 1)] == [0, 0]


@pytest.mark.parametrize("local", [0, 1, 2, 3], ids="{} blocks here".format)
def test_d_has_a_block_for_whatever_its_first_step_reads(local: int) -> None:
    """Told of all tokens but the last, vLLM allocates from the first block that is read on."""
    for tokens, window in CASES:
        hit = local * BLOCK
        if hit >= tokens - 1:
            continue
        made = manager(window)
        cached = made.block_pool.get_new_blocks(local)
        kept = first_read_block(hit + 1, window, BLOCK)
        found = [made.block_pool.null_block] * kept + cached[kept:]
        made.add_local_computed_blocks("r", found, hit, tokens - 1 - hit)
        made.allocate_external_computed_blocks("r", hit, tokens - 1 - hit)

        table = made.req_to_blocks["r"]
        first = first_read_block(tokens, window, BLOCK)
        if window > 0 or read_by_the_last(tokens, window):  # where a chunk begins, there may be nothing to be allocated
            assert places(table) == list(range(first, -(-(tokens - 1) // BLOCK)))
        assert set(read_by_the_last(tokens, window)) <= set(places(table))


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 8, 30], ids="chunks of {}".format)
def test_p_keeps_what_d_reads_until_its_last_chunk_has_been_scheduled(chunk: int) -> None:
    """Nothing that travels is recycled while the prompt is computed; at its end one block of it is freed, or a chunk."""
    lost = 0
    for tokens, window in CASES:
        made = manager(window)
        first = first_read_block(tokens, window, BLOCK)
        table = made.req_to_blocks["r"]
        for computed in range(0, tokens, chunk):
            made.remove_skipped_blocks("r", computed)
            made.allocate_new_blocks("r", min(tokens, computed + chunk), min(tokens, computed + chunk))
            assert set(places(table)) >= set(range(first, len(table)))
        made.remove_skipped_blocks("r", tokens)
        gone = set(range(first, len(table))) - set(places(table))
        assert gone <= ({first} if window > 0 else set(range(first, len(table))))
        lost += bool(gone)
    assert lost


def test_without_a_window_everything_is_read() -> None:
    """Full attention. The tables of all groups but states begin with the prompt; a window's has null blocks there."""
    assert first_read_block(1_000, EVERYTHING, BLOCK) == 0
    assert Group().most_read_blocks(BLOCK) > 1_000
    assert Group(3).place_of_first(100, BLOCK) == Group().place_of_first(100, BLOCK) == 0


def test_most_read_blocks_is_a_bound() -> None:
    """For deciding whether there is room for a prompt."""
    for tokens, window in CASES:
        first = first_read_block(tokens, window, BLOCK)
        assert -(-tokens // BLOCK) - first <= Group(window).most_read_blocks(BLOCK)
    assert STATE.most_read_blocks(BLOCK) == 1


@pytest.mark.parametrize(
    ("tokens", "first", "places"),
    [
        (7 * BLOCK, 0, [0, 11, 0, 12, 0, 13, 14]),  # the last block is cut off by the prompt's end
        (6 * BLOCK, 0, [0, 11, 0, 12, 0, 13]),  # the fourth is beyond it
        (7 * BLOCK, 2, [0, 11, 12]),
    ],
)
def test_a_long_block_stands_at_the_last_of_its_places(tokens: int, first: int, places: list[int]) -> None:
    """There it counts as ready when all of it has been written."""
    assert Group(places=2).spread([11, 12, 13, 14], first, tokens, BLOCK, 0) == places
    assert Group().spread([11, 12], first, tokens, BLOCK, 0) == [11, 12]


def test_long_blocks_are_fewer() -> None:
    """For deciding whether there is room for a prompt."""
    assert Group(places=2).blocks_of(7 * BLOCK, BLOCK) == 4
    assert Group(3 * BLOCK, places=2).blocks_of(100 * BLOCK, BLOCK) == 3
    assert STATE.blocks_of(100, BLOCK) == 1
    assert STATE._replace(drafts=3).blocks_of(100, BLOCK) == 4


def test_the_blocks_of_drafted_tokens_have_no_place() -> None:
    """The first of a state's table is that of all tokens that are certain."""
    drafted, tokens = STATE._replace(drafts=2), 3 * BLOCK

    assert drafted.spread([7, 8, 9], 0, tokens, BLOCK, 0) == STATE.spread([7], 0, tokens, BLOCK, 0) == [0, 0, 7]
    assert drafted.spread([], 3, tokens, BLOCK, 0) == []


def test_a_state_of_a_single_token_is_not_worth_a_transfer_beside_drafts() -> None:
    """A prompt of one token is filled up with placeholders by vLLM, which computes these into the state."""
    assert least_tokens((Group(), STATE)) == 1
    assert least_tokens((Group(), STATE._replace(drafts=1))) == 2


@pytest.mark.parametrize("tokens", range(1, 30))
def test_a_states_place_is_written_by_the_last_chunk_alone(tokens: int) -> None:
    """It counts as ready only when all tokens but the last have been computed, and D has a place for it (I1)."""
    place = STATE.place_of_first(tokens, BLOCK)

    assert place == first_read_block(tokens, OF_A_STATE, BLOCK) == max(0, tokens - 2) // BLOCK
    assert all(computed // BLOCK <= place for computed in range(tokens - 1))
    assert place < -(-tokens // BLOCK)


@pytest.mark.parametrize(
    ("groups", "may"),
    [
        ([STATE, STATE, Group()], True),
        ([CACHED_STATES, Group()], True),
        ([CACHED_STATES, Group(), Group(4 * 16)], False),
        ([CACHED_STATES, Group(), Group()], False),
        ([Group(), Group(4 * 16)], False),
    ],
)
def test_a_prefix_counts_as_cached_though_a_group_has_less_of_it_where_that_is_a_state(
    groups: list[Group], may: bool
) -> None:
    """States are sent in any case; a window's blocks before the prefix's end would be filled by nobody."""
    assert hits_may_diverge(groups) == may
