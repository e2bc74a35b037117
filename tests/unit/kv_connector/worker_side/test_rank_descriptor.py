"""Whether a rank accepts another node's introduction, and what it then has in common with it."""

from dataclasses import replace

import msgspec
import pytest

from baton.contracts.kv_transfer import Grid, Grids, Role
from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.outgoing import ProducerTransfer
from baton.kv_connector.handoff.pushing import GroupPair, TransferLayout
from baton.kv_connector.protocol.messages import Rank, Reserve
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from tests.support.described import fingerprint
from tests.support.plain_memory import plain_caches


def rank_of(node: str, role: Role, *, layers: int = 2, weights: str = "w") -> RankDescriptor:
    return RankDescriptor(node, role, Rank(), fingerprint(weights=weights), plain_caches(0, layers, 4, 256, 16))


def test_ranks_whose_caches_cannot_be_mapped_do_not_fit() -> None:
    """Their fingerprints are the same: only a comparison of the regions shows it."""
    ours, theirs = rank_of("P", "prefill"), rank_of("D", "decode", layers=3)

    reason = "2 KV regions in the prefill rank, 3 in the decode rank"
    assert ours.check_compatible(theirs.hello()) == f"P and D do not fit: {reason}"
    assert theirs.check_compatible(ours.hello()) == f"D and P do not fit: {reason}"
    assert ours.check_compatible(rank_of("D", "decode").hello()) == ""


def test_ranks_of_other_weights_are_told_of_nothing_else() -> None:
    """Their regions differ for the same reason."""
    ours, theirs = rank_of("P", "prefill"), rank_of("D", "decode", layers=3, weights="x")

    assert "regions" not in ours.check_compatible(theirs.hello())
    assert ours.check_compatible(theirs.hello()) == "P and D do not fit: weights: 'w' here, 'x' there"


def in_groups(node: str, role: Role, *groups: int) -> RankDescriptor:
    """A rank whose layers are in these KV cache groups."""
    plain = rank_of(node, role, layers=len(groups))
    regions = tuple(
        msgspec.structs.replace(region, group=group) for region, group in zip(plain.caches.regions, groups, strict=True)
    )
    return replace(plain, caches=replace(plain.caches, regions=regions))


def test_layers_are_in_groups_that_either_node_counts_for_itself() -> None:
    """What is read of P's blocks and written to D's is named group by group, in P's order of regions."""
    ours, theirs = in_groups("P", "prefill", 0, 1, 1), in_groups("D", "decode", 2, 0, 1)
    groups = {0: GroupPair(0, 2), 1: GroupPair(1, 0), 2: GroupPair(1, 1)}

    terms = ours.terms(theirs.hello())

    assert terms == TransferLayout(layers=(0, 1, 2), shares=3, regions=[0, 1, 2], groups=groups)
    wanted = [[0, 8], [4, 5], [7, 0]]
    wish = BlockReservation(32, 0, wanted, b"p")
    assert theirs.written_to(wish, ours.hello()) == [([7], [0]), ([8], [1]), ([4, 5], [2])]
    reserve = Reserve(transfer_id="t", epoch=1, engine="e", tokens=32, from_token=0, blocks=wanted, prompt_hash=b"p")
    transfer = ProducerTransfer("t", 0.0, 3, terms=terms, reservation=reserve, source_blocks=[[1, 2], [3, 6]])
    assert ours.read_from(transfer) == [([1], [0]), ([6], [1]), ([3, 6], [2])]


@pytest.mark.parametrize(
    ("rank", "index", "samples"),
    [
        (Rank(), 0, True),
        (Rank(tp=1, tp_size=2), 1, False),
        (Rank(tp=0, tp_size=2, pp=0, pp_size=2), 0, False),
        (Rank(tp=0, tp_size=2, pp=1, pp_size=2), 2, True),
        (Rank(tp=1, tp_size=2, pp=1, pp_size=2), 3, False),
    ],
)
def test_one_rank_of_the_last_stage_returns_the_tokens(rank: Rank, index: int, samples: bool) -> None:
    """The first, as vLLM has it; ranks are numbered stage by stage."""
    one = replace(rank_of("P", "prefill"), rank=rank)

    assert (one.index, one.samples, one.grid) == (index, samples, Grid(rank.tp_size, rank.pp_size))


def test_ranks_know_the_flows_between_them() -> None:
    """Two stages of one rank send to two ranks of one stage, each of which gets half of the heads of both."""
    grids = Grids(prefill=Grid(tp=1, pp=2), decode=Grid(tp=2, pp=1))
    sends = replace(rank_of("P", "prefill"), rank=Rank(pp=1, pp_size=2), divided=(4,))
    receives = replace(rank_of("D", "decode"), rank=Rank(tp=1, tp_size=2), divided=(4,))

    assert sends.flows_from("t", grids) == [("t/1-0", 2), ("t/1-1", 2)]
    assert receives.flows_to("t", grids, ["tcp://p:0", "tcp://p:1"]) == [
        ("t/0-1", "tcp://p:0"),
        ("t/1-1", "tcp://p:1"),
    ]
    assert rank_of("P", "prefill").flows_from("t", Grids()) == [("t", 1)]
    assert rank_of("D", "decode").shares_from(Grids()) == 2
