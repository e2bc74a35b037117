"""Whether a rank accepts another node's introduction."""

from baton.contracts.kv_transfer import Role
from baton.kv_connector.protocol.messages import Rank
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
    assert "weights" in ours.check_compatible(theirs.hello())
