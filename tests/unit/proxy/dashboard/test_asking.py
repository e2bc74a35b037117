"""What is taken from a node's brief answer."""

from typing import Any

import pytest

from baton.proxy.dashboard.asking import failures_of, gauge


def test_a_decode_nodes_numbers() -> None:
    said: dict[str, Any] = {
        "scheduler": {
            "num_blocks": 100,
            "free_blocks": 40,
            "reserved_blocks": 8,
            "histograms": {"exposed_transfer_s": {"bounds": [1.0], "counts": [3, 1], "sum": 0.5}},
        },
        "worker": {
            "quarantined_blocks": 4,
            "open_transfers": 2,
            "sessions": [{"state": "open"}, {"state": "refused"}],
            "totals": {"bytes": 7},
        },
    }

    found = gauge(said)

    assert (found["blocks"], found["free"], found["reserved"], found["quarantined"]) == (100, 40, 8, 4)
    assert (found["open"], found["sessions"], found["refused_sessions"], found["pushed_bytes"]) == (2, 2, 1, 7)
    assert (found["exposed"], found["hidden"]) == ([4, 0.5], None)


@pytest.mark.parametrize("said", [{}, {"problem": "it did not answer"}, {"scheduler": None, "worker": []}])
def test_nothing_is_shown_of_a_node_that_told_nothing(said: dict[str, Any]) -> None:
    """No zeros that look like an idle node."""
    assert gauge(said) == {}


@pytest.mark.parametrize(
    "worker",
    [
        {"histograms": {"hidden_share": {"counts": "many", "sum": 1}}},
        {"histograms": {"hidden_share": {"counts": [1, None]}}},
        {"sessions": 3},
        *({"failures": failures} for failures in (7, ["lost"], {"a": 1}, None)),
    ],
)
def test_what_another_version_says_otherwise_is_left_out(worker: dict[str, Any]) -> None:
    """One such node must not end the round of all of them."""
    known = {"transfer_id": "ab", "state": "failed", "reason": "gone"}
    said = {"scheduler": {"failures": [known]}, "worker": {**worker, "quarantined_blocks": 4}}

    found = gauge(said)

    assert (found["quarantined"], found["hidden"], found["sessions"]) == (4, None, 0)
    assert failures_of(said) == [known]
