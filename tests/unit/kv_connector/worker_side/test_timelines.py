"""What a prefill rank tells of single transfers."""

from typing import Any

from baton.kv_connector.handoff.layer_times import LayerTimes
from baton.kv_connector.handoff.outgoing import ProducerTransfer, Prompt
from baton.kv_connector.worker_side.timelines import Timelines

PROMPT = Prompt(40, 3, b"p", cached_tokens=16)


def transfer(name: str, **changes: Any) -> ProducerTransfer:
    """One whose second layer was written half a second after it was scheduled."""
    times = LayerTimes()
    times.wrote(1, 10.5)
    usual: dict[str, Any] = {
        "prompt": PROMPT,
        "marks": {"scheduled": 10.0, "reserved": 9.5},
        "pushing_s": 0.1234567,
        "layer_times": times,
    }
    return ProducerTransfer(name, 9.0, 2, **usual | changes)


def told(name: str, *, is_open: bool) -> dict[str, Any]:
    return {
        "transfer_id": name,
        "open": is_open,
        "layers": 2,
        "tokens": 40,
        "cached_tokens": 16,
        "timings_s": {"reserved": -0.5, "scheduled": 0.0},
        "pushing_s": 0.123457,
        "written": [[0.5, 1]],
        "pushes": [],
        "lost": 0,
    }


def test_a_transfers_flows_are_found_ended_or_open() -> None:
    """By the transfer's id; others are left out."""
    timelines = Timelines()
    for name in ("a/0-0", "b"):
        timelines.add(transfer(name))

    found = timelines.find("a", [transfer("a/0-1"), transfer("b")])

    assert found == [told("a/0-0", is_open=False), told("a/0-1", is_open=True)]


def test_a_transfer_without_a_prompt_or_times_has_no_timeline() -> None:
    """There is nothing to tell of it."""
    timelines = Timelines()
    timelines.add(transfer("a", marks={}))
    timelines.add(transfer("a", layer_times=None))

    assert timelines.find("a", [transfer("a", marks={}), transfer("a", layer_times=None)]) == []
