"""Whether the source of an answer's KV still has it, by vLLM's own requests and prefix cache."""

from collections.abc import Sequence
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from baton.kv_connector.layout.groups import ONE_GROUP, Group
from baton.kv_connector.scheduler_side.answer_tokens import ModelLimits, has_kv, lengthen
from baton.kv_connector.scheduler_side.prefill import KV_LOST, PrefillScheduler
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, SECRET, request, step_output

PROMPT, ANSWER = [*range(40)], [*range(100, 140)]
BLOCKS = (len(PROMPT) + len(ANSWER)) // BLOCK_TOKENS


def new_request(tokens: list[int], params: Any = None, **more: Any) -> Request:
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
    made = Request("r1", tokens, SamplingParams(max_tokens=1, **more), None, block_hasher=hasher)
    made.kv_transfer_params = params
    return made


def pool_with(blocks: int) -> BlockPool:
    """A pool whose prefix cache has the first blocks of the prompt and the answer."""
    pool = BlockPool(33, enable_caching=True, hash_block_size=BLOCK_TOKENS)
    if blocks:
        made = new_request(PROMPT + ANSWER)
        pool.cache_full_blocks(made, pool.get_new_blocks(blocks), 0, blocks, BLOCK_TOKENS, 0)
    return pool


def lengthened(**more: Any) -> Request:
    made = new_request(PROMPT, **more)
    lengthen(made, ANSWER)
    return made


@pytest.mark.parametrize(("blocks", "has"), [(BLOCKS, True), (BLOCKS - 2, True), (BLOCKS - 3, False), (0, False)])
def test_the_end_of_the_cached_blocks_says_whether_the_kv_is_there(blocks: int, has: bool) -> None:
    assert has_kv(lengthened(), pool_with(blocks)) is has


def test_a_request_that_reads_no_prefix_cache_has_no_kv() -> None:
    assert not has_kv(lengthened(skip_reading_prefix_cache=True), pool_with(BLOCKS))


@pytest.mark.parametrize(("blocks", "has"), [(2, True), (3, False)])
def test_a_short_answer_behind_a_short_prompt_is_computed(blocks: int, has: bool) -> None:
    """Two blocks cost as much as looking for them."""
    assert has_kv(new_request((PROMPT + ANSWER)[: blocks * BLOCK_TOKENS]), pool_with(0)) is has


@pytest.mark.parametrize(
    ("blocks", "groups", "reasons"),
    [(BLOCKS, ONE_GROUP, []), (0, ONE_GROUP, [KV_LOST]), (0, (Group(), Group(window=33)), [])],
    ids=["with the KV", "without", "of several groups it is not asked"],
)
def test_a_source_without_the_kv_computes_nothing(blocks: int, groups: Sequence[Group], reasons: list[str]) -> None:
    """The other node is told, and computes what it lacks, or leaves it."""
    side = PrefillScheduler(SECRET, BLOCK_TOKENS, groups=groups, sampling="s", answers=ModelLimits(200, 200))
    side.bind_pool(pool_with(blocks))
    leg = new_request(PROMPT, request("prefill", 1, start=((*ANSWER, 1),)).kv_transfer_params)

    side.add_request(leg)

    assert [each.reason for each in side.take_step(step_output()).abandoned] == reasons
    assert leg.num_tokens == len(PROMPT + ANSWER)
    assert ("baton_start_at_once" in leg.__dict__) is bool(reasons)
