"""What a prefill rank remembers of single layers."""

import pytest

from baton.kv_connector.handoff import layer_times
from baton.kv_connector.handoff.layer_times import LayerTimes
from baton.kv_connector.handoff.pushing import Piece
from baton.kv_connector.worker_side.timelines import Timelines
from tests.unit.kv_connector.handoff.machines import Pair, make_producer, reserved


def test_instants_count_from_an_origin() -> None:
    """Layers as they were written; pushes with their extent, those under way without an end and last."""
    times = LayerTimes()
    first, second = (Piece(0, 0, 3), Piece(1, 0, 2)), (Piece(1, 2, 3),)
    times.wrote(0, 10.5)
    times.wrote(1, 10.75)
    times.begins(first, 11.0)
    times.begins(second, 11.25)
    times.ends(first, 12.0)

    assert times.snapshot(10.0) == {
        "written": [[0.5, 0], [0.75, 1]],
        "pushes": [[1.0, 2.0, 0, 1, 5], [1.25, None, 1, 1, 1]],
        "lost": 0,
    }
    times.ends(second, 12.5)
    assert times.snapshot(10.0)["pushes"] == [[1.0, 2.0, 0, 1, 5], [1.25, 2.5, 1, 1, 1]]


def test_a_long_prompt_has_bounded_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond the bound is counted, not kept."""
    monkeypatch.setattr(layer_times, "MAX_EVENTS", 2)
    times = LayerTimes()
    for layer in range(5):
        times.wrote(layer, 1.0)
        times.begins((Piece(layer, 0, 1),), 1.0)
        times.ends((Piece(layer, 0, 1),), 2.0)

    found = times.snapshot(0.0)

    assert [len(found["written"]), len(found["pushes"]), found["lost"]] == [2, 2, 6]


def test_a_transfer_is_timed_layer_by_layer_and_told_of_after_its_end() -> None:
    """Open or ended, by the transfer's id; others are not shown."""
    pair, timelines = Pair(make_producer(times_layers=True)), Timelines()
    pair.reserve()
    pair.start()
    (transfer_id,) = pair.p.transfers
    pair.write()
    (open_,) = timelines.find(transfer_id, pair.p.transfers.values())
    pair.push()
    timelines.add(pair.p.ended[-1][0])
    (ended,) = timelines.find(transfer_id, ())

    assert (open_["open"], ended["open"]) == (True, False)
    assert [layer for _, layer in open_["written"]] == [0, 1]
    assert open_["pushes"] == []
    assert {layer for push in ended["pushes"] for layer in range(push[2], push[3] + 1)} == {0, 1}
    assert all(push[1] is not None for push in ended["pushes"])
    assert ended["timings_s"]["scheduled"] == 0.0
    assert "commit" in ended["timings_s"]
    assert ended["layers"] == 2
    assert timelines.find("another", ()) == []
    assert [each.layer_times for each in reserved().p.transfers.values()] == [
        None
    ]  # of a rank that is not asked for them
