"""What is taken from a node's brief answer."""

from typing import Any

import pytest

from proxy.dashboard.asking import gauge


def test_a_decode_nodes_numbers() -> None:
    """Blocks, reservations and quarantine; how many peers, and how many of them were refused."""
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
