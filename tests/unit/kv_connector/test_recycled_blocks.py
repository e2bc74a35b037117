"""How many copies a layer of a prompt takes when vLLM's pools give out blocks that earlier prompts had."""

import random

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from baton.kv_connector.handoff.outgoing import UnitMapping
from baton.kv_connector.handoff.pushing import Coverage
from baton.kv_connector.layout.copy_plan import plan_layers
from baton.kv_connector.layout.regions import Region

BLOCK_TOKENS, BLOCK_BYTES = 16, 64
PROMPTS = 300  # of 100 to 299 tokens: a pool of 13 to 14 blocks each is full with them
PUSH_UNITS = 1024


def manager() -> KVCacheManager:
    """Make vLLM's own, with its prefix cache."""
    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=2, dtype=torch.float32)
    cache = KVCacheConfig(PROMPTS * 14, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)])
    return KVCacheManager(
        cache, 4096, scheduler_block_size=BLOCK_TOKENS, hash_block_size=BLOCK_TOKENS, enable_caching=True
    )


def allocate(node: KVCacheManager, prompt: Request) -> list[int]:
    """Schedule a prompt in one step; its block ids in prompt order."""
    _, cached, *_ = node.get_computed_blocks(prompt)
    assert cached == 0, "the prompts are distinct"
    assert node.allocate_slots(prompt, prompt.num_prompt_tokens) is not None, "the pool is too small"
    table: list[int] = node.get_block_ids(prompt.request_id)[0]
    return table


def copies_of(source: list[int], target: list[int]) -> int:
    """Copies for one layer of a prompt, from what the state machine hands out on."""
    coverage = Coverage(layers=[0], first_unit=0, wanted=len(source), ready=[len(source)])
    region = Region(
        name="kv", layer=0, base_addr=0, block_bytes=BLOCK_BYTES, stride_bytes=BLOCK_BYTES, num_blocks=PROMPTS * 14
    )
    units = UnitMapping(source, target, 0, 1, 1)
    lists = (units.lie(piece.start, piece.stop)[:2] for piece in coverage.take(PUSH_UNITS))
    return sum(len(plan_layers([(region, region)], *ids)) for ids in lists)


def fewest_copies(source: list[int], target: list[int]) -> int:
    """Copies that no order of blocks goes below: one for each block that does not follow another on both nodes."""
    pairs = set(zip(source, target, strict=True))
    return sum((s - 1, t - 1) not in pairs for s, t in pairs)


def test_recycled_blocks_travel_in_few_copies() -> None:
    """Prompts that fill both pools, end in the order in which they came, and fill the pools again: falling runs."""
    rng = random.Random(1)
    hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
    prefill, decode = manager(), manager()
    shares = []
    for filling in range(2):
        prompts = []
        blocks = copies = fewest = 0
        for i in range(PROMPTS):
            tokens = [rng.randrange(30_000) for _ in range(rng.randint(100, 299))]
            prompts.append(Request(f"{filling}-{i}", tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher))
            source, target = (allocate(node, prompts[-1]) for node in (prefill, decode))
            blocks += len(source)
            copies += copies_of(source, target)
            fewest += fewest_copies(source, target)
        for node in (prefill, decode):
            for prompt in prompts:
                node.free(prompt)
        assert copies == fewest
        shares.append(copies / blocks)

    fresh, recycled = shares
    assert fresh < 0.1
    assert recycled < 0.22, f"a layer of recycled blocks travels in {recycled:.3f} copies a block"
    print(f"copies a block: {fresh:.3f} fresh, {recycled:.3f} recycled")
