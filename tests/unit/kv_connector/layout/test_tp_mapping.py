"""Who exchanges what, for all sizes to 16."""

from itertools import product

import pytest

from baton.contracts.kv_transfer import Grid
from baton.kv_connector.layout.tp_mapping import (
    fits,
    flow_id,
    heads_between,
    heads_of,
    named,
    readers,
    sources,
    transfer_id_of_flow,
)

SIZES = range(1, 17)
CASES = [(h, p, d) for h, p, d in product(SIZES, SIZES, SIZES) if fits(h, p) and fits(h, d)]


@pytest.mark.parametrize(
    ("heads", "tp_size", "expected"),
    [
        (8, 2, [range(4), range(4, 8)]),
        (2, 4, [range(1), range(1), range(1, 2), range(1, 2)]),
        (1, 2, [range(1), range(1)]),
    ],
    ids=["divided", "replicated", "one head"],
)
def test_heads_are_divided_in_order_and_replicated_on_neighbours(
    heads: int, tp_size: int, expected: list[range]
) -> None:
    """As vLLM's projection layers do it."""
    assert [heads_of(heads, tp_size, tp) for tp in range(tp_size)] == expected


def test_every_decode_rank_gets_each_of_its_heads_once() -> None:
    """Whatever the sizes: no head is missing, none comes twice, and each from a prefill rank that has it."""
    for heads, prefill, decode in CASES:
        for tp in range(decode):
            parts = [heads_between(heads, (prefill, other), (decode, tp)) for other in range(prefill)]
            assert sorted(head for part in parts for head in part) == list(heads_of(heads, decode, tp))
            assert all(set(part) <= set(heads_of(heads, prefill, other)) for other, part in enumerate(parts))


def test_both_sides_find_the_same_flows() -> None:
    """A flow exists for a P rank exactly if it does for the D rank, and exactly if some head travels."""
    for heads, prefill, decode in CASES:
        grids = Grid(prefill), Grid(decode)
        flows = {(p, d) for d in range(decode) for p in sources((heads,), *grids, d)}
        assert flows == {(p, d) for p in range(prefill) for d in readers((heads,), *grids, p)}
        assert flows == {
            (p, d) for p, d in product(range(prefill), range(decode)) if heads_between(heads, (prefill, p), (decode, d))
        }


def test_replicas_share_the_work() -> None:
    """Two ranks that hold a head serve two readers of it, one each."""
    assert [sources((1,), Grid(2), Grid(2), tp) for tp in range(2)] == [(0,), (1,)]
    assert [readers((2,), Grid(4), Grid(2), tp) for tp in range(4)] == [(0,), (), (1,), ()]


def test_a_rank_has_a_flow_with_all_that_it_takes_anything_from() -> None:
    """One KV head comes from one rank, the parts of a state from both."""
    assert sources((1,), Grid(2), Grid(1), 0) == (0,)
    assert sources((1, 8), Grid(2), Grid(1), 0) == (0, 1)
    assert [readers((1, 8), Grid(2), Grid(1), tp) for tp in range(2)] == [(0,), (0,)]


def test_every_stage_has_a_flow_with_every_stage() -> None:
    """Which layers they have in common is found when they meet."""
    assert sources((4,), Grid(1, 2), Grid(1, 1), 0) == (0, 1)
    assert readers((4,), Grid(1, 1), Grid(1, 3), 0) == (0, 1, 2)
    assert sources((4,), Grid(2, 2), Grid(2, 2), 3) == (1, 3)


def test_a_flow_is_named_after_its_ranks() -> None:
    """Between single ranks it is the transfer itself, as earlier versions call it."""
    assert flow_id("t", Grid(), Grid(), 0, 0) == "t"
    assert flow_id("t", Grid(2, 2), Grid(1), 3, 0) == "t/3-0"
    assert (transfer_id_of_flow("t/3-0"), transfer_id_of_flow("t")) == ("t", "t")
    assert (named("t/3-0"), named("t")) == ({"transfer_id": "t", "flow": "3-0"}, {"transfer_id": "t"})
