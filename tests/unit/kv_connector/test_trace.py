"""Records of ended transfers as Chrome trace events."""

from typing import Any

from baton.contracts.kv_transfer import Role
from baton.kv_connector.trace import Event, rows_of, trace_events


def prefilled(at_s: float, **timings: float) -> dict[str, Any]:
    """What P remembers of a transfer that it scheduled at `at_s`."""
    milestones = {
        "reserved": -0.5,
        "scheduled": 0.0,
        "first_push": 0.25,
        "last_layer": 1.0,
        "last_push": 1.25,
        "commit": 1.5,
    }
    return {"transfer_id": "t", "scheduled_at_s": at_s, "timings_s": milestones | timings, "hidden_share": 0.5}


DECODED = {
    "transfer_id": "t",
    "arrived_at_s": 10.0,
    "timings_s": {"arrived": 0.0, "reserved": 0.125, "reserve_sent": 0.25, "commit_received": 2.0, "first_step": 2.5},
    "prefill": {"timings_s": {}},
}


def drawn(records: list[dict[str, Any]], role: Role) -> list[Event]:
    """The spans of a node whose wall clock is 1000 s ahead of its monotonic one."""
    events = trace_events(records, role=role, process=7, name="node", wall_offset_s=1000.0)
    return [event for event in events if event["ph"] == "X"]


def times(events: list[Event]) -> dict[str, tuple[float, float]]:
    """Begin and end of each span, s."""
    return {event["name"]: (event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6) for event in events}


def test_a_prefill_node_shows_compute_pushes_and_what_showed() -> None:
    """Pushes overlap with the prefill, so they are on a line of their own; what is exposed follows the prefill."""
    events = drawn([prefilled(10.0)], "prefill")

    assert times(events) == {
        "prefill": (1010.0, 1011.0),
        "exposed push": (1011.0, 1011.5),
        "pushes": (1010.25, 1011.25),
    }
    lines = {event["name"]: event["tid"] for event in events}
    assert lines["prefill"] == lines["exposed push"] != lines["pushes"]
    assert {event["pid"] for event in events} == {7}
    assert all(event["args"] == {"transfer_id": "t", "scheduled_at_s": 10.0, "hidden_share": 0.5} for event in events)


def test_a_decode_node_shows_what_it_waited_for() -> None:
    """Blocks, then KV, then a step: one after the other on one line."""
    events = drawn([DECODED], "decode")

    assert times(events) == {
        "allocation": (1010.0, 1010.125),
        "waiting for KV": (1010.125, 1012.0),
        "commit to first step": (1012.0, 1012.5),
    }
    assert len({event["tid"] for event in events}) == 1


def test_a_transfer_that_failed_is_drawn_as_far_as_it_came() -> None:
    """No milestone is made up; one that came to nothing at all takes no line."""
    failed = DECODED | {"timings_s": {"arrived": 0.0, "reserved": 0.5, "failed": 3.0}}
    nothing = DECODED | {"timings_s": {"arrived": 0.0}}

    assert times(drawn([failed], "decode")) == {"allocation": (1010.0, 1010.5), "waiting for KV": (1010.5, 1013.0)}
    assert drawn([nothing], "decode") == []
    assert times(drawn([prefilled(10.0) | {"timings_s": {"scheduled": 0.0, "failed": 1.0}}], "prefill")) == {}


def test_transfers_that_overlap_have_lines_of_their_own() -> None:
    """On one line the viewer would draw one inside the other; a line that is free is used again."""
    events = drawn([prefilled(10.0), prefilled(10.5), prefilled(11.5)], "prefill")

    lines = [event["tid"] for event in events if event["name"] == "prefill"]
    assert lines[0] == lines[2] != lines[1]
    assert len({event["tid"] for event in events}) == 4


def test_rows_are_given_by_time_and_not_by_order() -> None:
    """Records come in the order in which transfers ended."""
    assert rows_of([(5, 9), (0, 6), (6, 7), (9, 10)]) == [1, 0, 0, 0]
    assert rows_of([]) == []


def test_process_and_lines_have_names() -> None:
    """The viewer shows which node it is, and that its clock is its own."""
    events = trace_events([prefilled(1.0)], role="prefill", process=7, name="prefill node a:1", wall_offset_s=0.0)

    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["prefill node a:1 (wall clock, approximate)", "compute 1", "pushes 1"]
