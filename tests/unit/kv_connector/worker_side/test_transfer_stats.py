"""What a prefill rank remembers of transfers that have ended."""

from baton.kv_connector.handoff.outgoing import ProducerTransfer
from baton.kv_connector.protocol.messages import Commit
from baton.kv_connector.worker_side.transfer_stats import Accounts


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
