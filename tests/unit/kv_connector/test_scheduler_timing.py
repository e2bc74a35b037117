"""When a decode node's request reached which milestone."""

from typing import Any

import pytest

from baton.kv_connector.handoff.metadata import DecodeReport, Ending
from baton.kv_connector.scheduler_side.timing import DecodeTimings
from baton.kv_connector.telemetry.timings import REMEMBERED_TRANSFERS

PREFILL = {"reserved": -0.5, "scheduled": 0.0, "last_layer": 2.0, "commit": 2.25}


def committed(at_s: float = 103.0) -> Ending:
    """COMMIT came, from a P whose clock is far off."""
    return Ending(at_s=at_s, reserve_sent_s=101.0, committed=True, timings_s=PREFILL, pushing_s=1.0)


def follow(timings: DecodeTimings, request_id: str = "r", ending: Ending | None = None) -> None:
    """A request arrives at 100 s and is reserved for at 100.5 s; its transfer ends."""
    timings.arrived(request_id, f"t-{request_id}", "tcp://p", 100.0)
    timings.reserved(request_id, 100.5)
    timings.ended({request_id: ending or committed()})


def last(timings: DecodeTimings) -> dict[str, Any]:
    record: dict[str, Any] = timings.snapshot()["recent"][-1]
    return record


def counted(timings: DecodeTimings, name: str) -> int:
    """How many values a histogram holds."""
    return sum(timings.snapshot()["histograms"][name]["counts"])


def test_both_nodes_milestones_stand_side_by_side() -> None:
    """D's count from the request's arrival, P's from the prompt's first step: each on its own clock."""
    timings = DecodeTimings()
    follow(timings)
    timings.loaded("r")
    timings.stepped(["other", "r"], 103.125)

    record = last(timings)

    assert (record["state"], record["arrived_at_s"]) == ("loaded", 100.0)
    assert record["timings_s"] == {
        "arrived": 0.0,
        "reserved": 0.5,
        "commit_received": 3.0,
        "reserve_sent": 1.0,
        "first_step": 3.125,
    }
    assert record["prefill"] == {"timings_s": PREFILL, "pushing_s": 1.0}
    assert (record["exposed_push_s"], record["commit_to_first_step_s"]) == (0.25, 0.125)
    assert (record["exposed_transfer_s"], record["hidden_share"]) == (0.375, 0.75)
    assert timings.snapshot()["histograms"]["exposed_transfer_s"]["sum"] == 0.375
    assert counted(timings, "commit_to_first_step_s") == 1


@pytest.mark.parametrize("state", ["recomputed", "cancelled"])
def test_a_transfer_that_came_to_nothing_is_remembered_and_not_measured(state: str) -> None:
    """Its milestones help to see why; its times would spoil the figures. The first ending counts."""
    timings = DecodeTimings()
    failed = Ending(at_s=104.0, reserve_sent_s=None, committed=False, timings_s={}, pushing_s=0.0)
    follow(timings, ending=failed)

    timings.close("r", state, "preempted")
    timings.close("r", "cancelled")

    assert (last(timings)["state"], last(timings)["reason"]) == (state, "preempted")
    assert last(timings)["timings_s"] == {"arrived": 0.0, "reserved": 0.5, "failed": 4.0}
    assert last(timings)["exposed_transfer_s"] is None
    assert counted(timings, "exposed_transfer_s") == 0
    assert len(timings.snapshot()["recent"]) == 1


def test_a_request_that_ends_between_kv_and_first_step_was_loaded() -> None:
    """Its client left in that moment; the transfer itself was a success."""
    timings = DecodeTimings()
    follow(timings)
    timings.loaded("r")

    timings.close("r", "cancelled")

    assert last(timings)["state"] == "loaded"
    assert last(timings)["commit_to_first_step_s"] is None


def test_what_is_forgotten_or_unknown_leaves_no_trace() -> None:
    """A prompt that was here already has no transfer; a late report of a gone request is ignored."""
    timings = DecodeTimings()
    timings.arrived("r", "t", "tcp://p", 1.0)

    timings.forget("r")
    timings.ended({"r": committed()})
    timings.close("r", "cancelled")

    assert timings.snapshot()["recent"] == []


def test_only_the_last_transfers_are_remembered_and_all_are_counted() -> None:
    """Memory is bounded, the histograms are not fooled by it."""
    timings = DecodeTimings()
    for number in range(REMEMBERED_TRANSFERS + 3):
        follow(timings, str(number))
        timings.loaded(str(number))
        timings.stepped([str(number)], 103.5)

    records = timings.snapshot()["recent"]

    assert (len(records), records[0]["request_id"]) == (REMEMBERED_TRANSFERS, "3")
    assert counted(timings, "commit_to_first_step_s") == REMEMBERED_TRANSFERS + 3


def test_the_last_rank_decides_when_a_request_was_complete() -> None:
    """Of several workers' reports on one request the later one is kept."""
    early, late = committed(1.0), committed(2.0)
    ours, theirs = DecodeReport(endings={"r": late}), DecodeReport(endings={"r": early, "s": early})

    assert ours.aggregate(theirs).endings == {"r": late, "s": early}
    assert theirs.aggregate(ours).endings == {"r": late, "s": early}
    assert DecodeReport(endings={"r": early})
