"""Nodes between which an answer's KV can move."""

from typing import Any

import pytest

from baton.proxy.planning.retry_policy import History
from tests.unit.proxy.members import BFLOAT16, node, request
from tests.unit.proxy.planning.planners import SENDS, planner


@pytest.mark.parametrize(
    ("source", "target", "fields"),
    [
        ({"both_ways": False}, {}, {}),
        ({"control_addresses": ["tcp://d:1", "tcp://d:2"]}, {}, {}),
        ({}, {"both_ways": False}, {}),
        ({}, {"first_tokens": ""}, {}),
        ({}, {"state": "silent"}, {}),
        ({}, {"fingerprint": BFLOAT16}, {}),
        ({}, {"served_models": ["another"]}, {}),
        ({}, {}, {"prompt": ["a", "b"]}),
        ({}, {}, {"use_beam_search": True}),
    ],
)
def test_an_answer_whose_kv_cannot_move(source: dict[str, Any], target: dict[str, Any], fields: dict[str, Any]) -> None:
    """Neither node may be one that only sends or only receives; which of several engines has the answer is not known."""
    leaves, takes = node("decode", **SENDS), node("decode", "http://m", 1, **SENDS)
    plain = planner([node("prefill", "http://p", 2)], [leaves, takes])
    plan = plain.move(request(), leaves, History())
    assert plan is not None
    assert (plan.prefill, plan.decode, plan.control_address) == (leaves, takes, "tcp://d:1")
    assert plain.move(request(), leaves, History().without(takes)) is None

    leaves, takes = node("decode", **SENDS | source), node("decode", "http://m", 1, **SENDS | target)
    assert planner([], [leaves, takes]).move(request(fields), leaves, History()) is None


def test_no_node_sends_kv_to_itself() -> None:
    """A node that has changed its role, and has it back, is another member with the same address, to which its own streams could move."""
    left, again = node("decode", **SENDS), node("decode", slot=1, **SENDS)
    as_prefill = node("prefill", again.url, 2, **SENDS)
    planned = planner([as_prefill], [again])

    assert planned.move(request(), left, History()) is None
    assert planned.return_answer(request(), left, as_prefill) is None
