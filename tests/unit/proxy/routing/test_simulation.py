"""Policies against recorded traffic: 2,000 requests of a real service, all of which share their first block."""

import pytest

from baton.loadtest.traffic.trace_replay import CONVERSATION, read_trace
from baton.proxy.routing.policies import LeastLoad, PrefixAffinity, RoundRobin
from tests.unit.proxy.routing.simulation import simulate

MAX_SHARE = 1.3


@pytest.mark.parametrize("cache_blocks", [800, 5000], ids=["small-cache", "large-cache"])
@pytest.mark.parametrize(
    ("nodes", "tokens_per_s"), [(4, 9_000), (4, 40_000), (8, 6_000), (8, 20_000), (16, 3_000), (16, 20_000)]
)
def test_affinity_finds_more_in_caches_and_keeps_the_balance(
    nodes: int, tokens_per_s: float, cache_blocks: int
) -> None:
    """From idle to overloaded: more cached tokens than by least load, and no node computes over 1.3 × the mean."""
    trace = read_trace(CONVERSATION)
    by_load, by_prefix = (
        simulate(policy, trace, nodes=nodes, tokens_per_s=tokens_per_s, cache_blocks=cache_blocks)
        for policy in (LeastLoad(), PrefixAffinity())
    )

    print(f"least load {by_load}, affinity {by_prefix}")
    assert by_prefix.cached_share > by_load.cached_share
    assert by_prefix.largest_share <= MAX_SHARE


def test_affinity_shortens_the_wait_where_caches_are_large() -> None:
    """What is not computed need not be waited for: with room for it, waits are shorter than by load or by turn."""
    trace = read_trace(CONVERSATION)

    waits = [
        simulate(policy, trace, nodes=8, tokens_per_s=6_000, cache_blocks=5_000).mean_wait_s
        for policy in (PrefixAffinity(), LeastLoad(), RoundRobin())
    ]

    assert waits == sorted(waits)


def test_the_shared_first_block_attracts_nobody() -> None:
    """All requests of the trace have their first block in common; with that one alone, each node gets its share."""
    trace = read_trace(CONVERSATION)
    assert len({request.hash_ids[0] for request in trace}) == 1

    result = simulate(PrefixAffinity(), trace, nodes=8, tokens_per_s=20_000, cache_blocks=1)

    assert result.largest_share <= MAX_SHARE
