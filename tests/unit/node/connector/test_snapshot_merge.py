"""One snapshot of several engines and ranks."""

from typing import Any

from baton.node.connector import snapshot_merge

RANK: dict[str, Any] = {
    "incarnation": "a",
    "num_blocks": 9,
    "transfers": [{"transfer_id": "t", "flow": "0-0"}],
    "open_transfers": 1,
    "totals": {"committed": 2},
    "refused": {"malformed": 1},
    "histograms": {"hidden_share": {"bounds": [0.5], "counts": [1, 2], "sum": 1.5}},
}


def test_counts_are_added_up_and_the_rest_is_the_first_ranks() -> None:
    """A kind that one rank never counted counts as none there."""
    rank = {**RANK, "engines": {"current": ["a:1", "a:2"], "retired": []}}
    other = {
        **rank,
        "incarnation": "b",
        "totals": {"committed": 1, "dirty": 4, "aborted": 0},
        "refused": {},
        "engines": {"current": ["b:1"], "retired": []},
    }

    both = snapshot_merge.ranks([rank, other])

    assert snapshot_merge.ranks([rank]) == rank
    assert both["totals"] == {"committed": 3, "dirty": 4, "aborted": 0}
    assert both["engines"] == {"current": ["a:1", "a:2", "b:1"], "retired": []}  # the doctor tries each
    assert both["refused"] == {"malformed": 1}
    assert (both["incarnation"], both["num_blocks"], both["open_transfers"]) == ("a", 9, 2)
    assert len(both["transfers"]) == 2
    assert both["histograms"]["hidden_share"] == {"bounds": [0.5], "counts": [2, 4], "sum": 3.0}


def test_a_block_that_several_ranks_keep_out_of_the_pool_is_one_block() -> None:
    """The ranks of an engine share its pool; other engines have their own."""
    rank = {**RANK, "quarantined_blocks": 3}

    assert snapshot_merge.ranks([rank, {**rank, "quarantined_blocks": 2}])["quarantined_blocks"] == 3
    assert snapshot_merge.workers([[rank, rank], [rank]])["quarantined_blocks"] == 6


def test_both_sides_of_a_node_that_sends_and_receives_are_combined() -> None:
    """The other side's as the node's own: its ranks share a pool, its counts are added up."""
    rank = {**RANK, "reverse": {"totals": {"loaded": 2}, "quarantined_blocks": 3}}

    both = snapshot_merge.workers([[rank, rank], [rank]])

    assert both["reverse"] == {"totals": {"loaded": 6}, "quarantined_blocks": 6}


def test_engines_have_pools_and_addresses_of_their_own() -> None:
    """Blocks add up; the addresses of an engine's ranks are one entry, in the engines' order."""
    engine = {"num_blocks": 10, "free_blocks": 4, "totals": {}, "control_addresses": ["tcp://h:1", "tcp://h:2"]}
    other = {**engine, "free_blocks": 3, "control_addresses": ["tcp://h:3", "tcp://h:4"]}

    both = snapshot_merge.schedulers([engine, other])

    assert (both["engines"], both["num_blocks"], both["free_blocks"]) == (2, 20, 7)
    assert both["control_addresses"] == ["tcp://h:1,tcp://h:2", "tcp://h:3,tcp://h:4"]


def test_a_node_is_sound_if_all_of_its_engines_are() -> None:
    sound = {
        "ok": True,
        "settled": True,
        "owners_known": True,
        "findings": [],
        "idle_checks": 3,
        "integrity_findings": 0,
    }
    other = {**sound, "ok": False, "findings": [{"block": 7}], "integrity_findings": 1}

    assert snapshot_merge.integrity([sound]) == sound
    assert snapshot_merge.integrity([sound, other]) == {
        **sound,
        "ok": False,
        "findings": [{"block": 7}],
        "idle_checks": 6,
        "integrity_findings": 1,
    }


def test_engines_reports_of_tokens_are_added_up() -> None:
    """All but the most slots that one of them used at once; an engine with vLLM's own runner adds nothing."""
    tokens = {
        "histograms": {"wait_s": {"bounds": [1.0], "counts": [1, 0], "sum": 0.5}},
        "submitted": 3,
        "slots": 4,
        "slots_in_use_max": 2,
    }
    ours = {"runner": "CudaRunner", "syncs": {"a.py:1": 1}, "tokens": tokens}

    both = snapshot_merge.runners(
        [ours, {**ours, "tokens": {**tokens, "slots_in_use_max": 1}}, {"runner": "", "syncs": {}}]
    )

    assert both["tokens"]["submitted"] == 6
    assert (both["tokens"]["slots"], both["tokens"]["slots_in_use_max"]) == (8, 2)
    assert both["tokens"]["histograms"]["wait_s"]["counts"] == [2, 0]
    assert both["syncs"] == {"a.py:1": 2}
    assert "tokens" not in snapshot_merge.runners([{"runner": "", "syncs": {}}])
    assert snapshot_merge.runners([ours]) == ours
