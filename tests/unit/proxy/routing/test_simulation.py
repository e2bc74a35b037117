"""Policies against recorded traffic: 2,000 requests of a real service, all of which share their first block."""

import pytest

from baton.loadtest.traffic.trace_replay import CONVERSATION, read_trace
from baton.proxy.routing.policies import LeastLoad, PrefixAffinity
from tests.unit.proxy.routing.simulation import simulate

MAX_SHARE = 1.3


@pytest.mark.parametrize(
    ("nodes", "tokens_per_s", "cache_blocks"),
    [(4, 9_000, 800), (4, 40_000, 5000), (8, 6_000, 5000), (8, 20_000, 800), (16, 3_000, 5000), (16, 20_000, 800)],
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
