"""What a prefill rank remembers of transfers that have ended."""

from typing import Any

import pytest

from baton.kv_connector.handoff.outgoing import ProducerTransfer
from baton.kv_connector.protocol.messages import Commit, Fail
from baton.kv_connector.worker_side.transfer_stats import Accounts, ended_at

DESCRIBED = {"transfer_id": "t", "bytes_pushed": 30, "bytes_expected": 40}


def test_a_committed_transfer_is_measured_and_counted() -> None:
    """A prefill of 1 s and pushes of 0.5 s took 1.25 s together: half of the pushes was hidden."""
    marks = {"scheduled": 10.0, "first_layer": 10.5, "last_layer": 11.0, "commit": 11.25}
    transfer = ProducerTransfer("t", since=10.0, layers=2, marks=marks, pushing_s=0.5)
    accounts = Accounts()

    commit = Commit(transfer_id="t", epoch=1, tokens=40, prompt_hash=b"p")
    accounts.add(transfer, commit, {"bytes_pushed": 30, "bytes_expected": 40})

    snapshot = accounts.snapshot({})
    totals, measured = snapshot["totals"], snapshot["histograms"]
    assert (totals["committed"], totals["bytes_committed"], totals["bytes_expected"]) == (1, 30, 40)
    assert {name: (sum(each["counts"]), each["sum"]) for name, each in measured.items()} == {
        "exposed_push_s": (1, 0.25),
        "hidden_share": (1, 0.5),
    }
    [record] = snapshot["recent"]
    assert (record["state"], record["exposed_push_s"], record["hidden_share"]) == ("committed", 0.25, 0.5)


def totals(**counts: int) -> dict[str, int]:
    names = ("committed", "revoked", "cancelled", "failed", "dirty", "mismatched", "bytes_committed", "bytes_expected")
    return dict.fromkeys(names, 0) | counts


@pytest.mark.parametrize(
    ("reason", "dirty", "state"),
    [
        ("revoked", False, "revoked"),
        ("no longer wanted", False, "revoked"),
        ("cancelled by the proxy", False, "cancelled"),
        ("preempted", False, "failed"),
        ("a push failed", True, "dirty"),
    ],
)
def test_a_transfer_that_was_not_committed_is_counted_by_its_end(reason: str, dirty: bool, state: str) -> None:
    """It is not measured; among the failures is what no node decided."""
    accounts = Accounts()
    transfer = ProducerTransfer(
        "t", since=9.0, layers=2, marks={"scheduled": 10.0, "failed": 12.5}, pushing_s=0.1234567
    )

    accounts.add(transfer, Fail(transfer_id="t", epoch=1, dirty=dirty, reason=reason), DESCRIBED)

    ended = {**DESCRIBED, "state": state, "reason": reason}
    snapshot: dict[str, Any] = accounts.snapshot({"pushes": 7})
    assert snapshot["totals"] == totals(**{state: 1}) | {"pushes": 7}
    assert snapshot["failures"] == ([ended] if state in ("failed", "dirty") else [])
    assert [sum(each["counts"]) for each in snapshot["histograms"].values()] == [0, 0]
    assert snapshot["recent"] == [
        {
            **ended,
            "scheduled_at_s": 10.0,
            "timings_s": {"scheduled": 0.0, "failed": 2.5},
            "pushing_s": 0.123457,
            "exposed_push_s": None,
            "hidden_share": None,
        }
    ]


def test_a_transfer_whose_prompt_never_started_has_no_milestones() -> None:
    """It is counted all the same; one that arrived wrong is a failure, too."""
    accounts = Accounts()

    accounts.add(
        ProducerTransfer("t", 9.0, 2), Fail(transfer_id="t", epoch=0, dirty=False, reason="aborted"), DESCRIBED
    )
    accounts.add_mismatch("u", "layer.3")

    snapshot = accounts.snapshot({})
    assert (snapshot["totals"], snapshot["recent"]) == (totals(failed=1, mismatched=1), [])
    assert snapshot["failures"] == [
        {**DESCRIBED, "state": "failed", "reason": "aborted"},
        {"transfer_id": "u", "state": "mismatched", "reason": "layer.3"},
    ]


@pytest.mark.parametrize(("marks", "at_s"), [({"commit": 3.0, "failed": 4.0}, 3.0), ({"failed": 4.0}, 4.0), ({}, 1.0)])
def test_a_transfer_ended_when_its_outcome_was_known(marks: dict[str, float], at_s: float) -> None:
    """Or, if that was never noted, when it was first heard of."""
    assert ended_at(ProducerTransfer("t", 1.0, 2, marks=marks)) == at_s
