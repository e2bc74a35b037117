"""One node or a pair: what a planner lets a node do alone, and what it knows of both when it chooses."""

from typing import Any
from unittest.mock import Mock

import pytest

from baton.contracts.http import LOCAL
from baton.contracts.node_info import Adapter
from baton.proxy.errors import FailureKind
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.node import Node
from baton.proxy.planning import reasons
from baton.proxy.planning.placement import Placement
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.planning.retry_policy import History
from baton.proxy.request.endpoints import RESPONSES
from baton.proxy.request.parse import parse
from baton.proxy.routing.policies import PrefixAffinity
from baton.proxy.routing.prefixes import CHUNK_BYTES
from tests.unit.proxy.members import BFLOAT16, computing, node, request
from tests.unit.proxy.planning.planners import D_FAILED, SCORED, planner


@pytest.fixture
def placement(monkeypatch: pytest.MonkeyPatch) -> Mock:
    made = Mock(return_value=Placement.PAIR)
    monkeypatch.setattr("baton.proxy.planning.planner.choose_placement", made)
    return made


def on_prefill_if_it_may(*_: object, prefill_may_decode: bool, **__: object) -> Placement:
    return Placement.ON_PREFILL if prefill_may_decode else Placement.PAIR


def busy_prefill() -> Node:
    made = node("prefill")
    for prompt_bytes in (1, 1000) * MIN_SAMPLES:
        made.prefill_time.learn(prompt_bytes, prompt_bytes * 1e-5, made.clock())
    made.begin(90_000)
    return made


def test_a_decode_node_computes_what_would_wait_for_busy_prefill_nodes() -> None:
    maker, taker = busy_prefill(), node("decode")

    chosen = planner([maker], [taker]).first(request())
    others = [
        planner([maker], [taker], targets=None).first(request()),
        planner([maker], [taker], "refuse").first(request()),
        planner([maker, node("prefill", slot=1)], [taker]).first(request()),
    ]
    with computing(taker, 1 << 20):  # as much as it may
        others.append(planner([maker], [taker]).first(request()))
    others.append(planner([maker], [taker]).first(request(), History(attempts=1)))
    others.append(planner([maker], [taker]).first(request(), others_wait=True))

    assert isinstance(chosen, LocalPlan)
    assert (chosen.decode, chosen.reason, chosen.label) == (taker, reasons.ON_DECODE, "on_decode")
    assert chosen.work_bytes == request().prompt_bytes
    assert [type(plan) for plan in others] == [DisaggregatedPlan] * 6


@pytest.mark.parametrize(
    ("maker_samples", "taker_samples", "is_allowed"), [("a", "a", True), ("a", "b", False), ("", "", False)]
)
def test_a_prefill_node_makes_an_answer_only_if_it_samples_as_the_decode_node(
    placement: Mock, maker_samples: str, taker_samples: str, is_allowed: bool
) -> None:
    placement.side_effect = on_prefill_if_it_may
    maker, taker = node("prefill", first_tokens=maker_samples), node("decode", first_tokens=taker_samples)
    made = planner([maker], [taker])

    chosen = made.first(request())
    others = [
        made.first(request(), History(attempts=1)),
        made.first(parse(RESPONSES, "id", [], b'{"input": "x"}')),
    ]

    assert (chosen.decode is maker, isinstance(chosen, LocalPlan)) == (is_allowed, is_allowed)
    assert [type(plan) for plan in others] == [DisaggregatedPlan] * 2


@pytest.mark.parametrize("place", list(Placement))
def test_only_a_node_that_gets_a_prompt_is_taken_to_have_it(placement: Mock, place: Placement) -> None:
    placement.return_value = place
    made = planner(
        [node("prefill", first_tokens="a")], [node("decode", first_tokens="a")], decode_policy=PrefixAffinity()
    )
    for _ in range(2):
        made.first(request({"prompt": "x" * 10 * CHUNK_BYTES}))

    known = [
        tuple(choice.new_bytes < call.kwargs["prompt_bytes"] for choice in call.args[:2])
        for call in placement.mock_calls
    ]
    assert known == [(False, False), (place is not Placement.ON_DECODE, place is not Placement.ON_PREFILL)]


@pytest.mark.parametrize("place", list(Placement))
def test_a_plan_counts_what_a_node_has_of_a_prompt_by_what_it_costs(
    monkeypatch: pytest.MonkeyPatch, placement: Mock, place: Placement
) -> None:
    placement.return_value = place
    prefill, decode = node("prefill", first_tokens="a"), node("decode", first_tokens="a")
    for each, cost in (prefill, 0.5), (decode, 0.25):
        monkeypatch.setattr(each.prefill_time, "_cached", Mock(cost=cost))
    made, asked = planner([prefill], [decode], decode_policy=PrefixAffinity()), request({"prompt": "x" * 4096})
    made.first(asked)

    plan = made.first(asked)

    cost = 0.25 if place is Placement.ON_DECODE else 0.5
    work_bytes = plan.work_bytes
    assert (plan.cached_bytes, work_bytes) == (4096, asked.prompt_bytes - round((1 - cost) * 4096))


def test_a_choice_by_cost_knows_the_share_of_prefill_nodes(placement: Mock) -> None:
    """Of the nodes that the request could have: one decode node more serves another model."""
    takers = [node("decode") for _ in range(3)]
    planner([node("prefill")], [*takers, node("decode", served_models=["other"])]).first(request({"model": "m"}))

    assert placement.call_args.kwargs["prefill_nodes_share"] == 0.25


def test_a_prefill_node_makes_no_answer_with_an_adapter(placement: Mock) -> None:
    """Two nodes may have loaded other files under one name: a pair compares them."""
    placement.side_effect = on_prefill_if_it_may
    described: dict[str, Any] = {
        "first_tokens": "a",
        "served_models": ["m", "lora"],
        "adapters": [Adapter(name="lora", root="", parent="m")],
    }
    made = planner([node("prefill", **described)], [node("decode", **described)])

    plans = [
        made.first(request({"model": model, **more})) for model in ("m", "lora") for more in ({}, {"max_tokens": 1})
    ]

    assert [type(plan) for plan in plans] == [LocalPlan] * 2 + [DisaggregatedPlan] * 2


def test_a_retry_stays_with_the_prefill_node_that_has_the_prompt() -> None:
    maker, taker = busy_prefill(), node("decode")
    keep = DisaggregatedPlan(decode=taker, prefill=maker, rank=0, transfer_id="")

    assert isinstance(planner([maker], [taker]).first(request(), keep=keep), DisaggregatedPlan)


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({**SCORED, "max_tokens": 0}, "prompt_logprobs"),
        ({**SCORED, "max_completion_tokens": 1}, "prompt_logprobs"),
        ({"max_tokens": 1}, "one_token"),
    ],
)
def test_what_makes_nearly_no_tokens_is_served_by_a_prefill_node(fields: dict[str, Any], label: str) -> None:
    """Decode nodes go on making tokens. If it fails there, a decode node serves it."""
    maker, taker = node("prefill", first_tokens="a"), node("decode", first_tokens="a")
    made, asked = planner([maker], [taker]), request(fields)

    chosen = made.first(asked)
    again = made.after(chosen, D_FAILED, asked, History().after(maker, FailureKind.CONNECT), may_retry=True)

    assert isinstance(chosen, LocalPlan)
    assert (chosen.decode, chosen.path, chosen.label) == (maker, LOCAL, label)
    assert again.decode is taker
    if label == "prompt_logprobs":  # whatever the prefix cache has
        for _ in range(2):
            asked = request({**fields, "prompt": "x" * 9 * CHUNK_BYTES})
            chosen = made.first(asked)
            assert isinstance(chosen, LocalPlan)
            assert chosen.work_bytes == asked.prompt_bytes


@pytest.mark.parametrize(
    ("maker", "fields", "label"),
    [
        ({}, SCORED, "prompt_logprobs"),
        ({}, {**SCORED, "max_tokens": 2}, "prompt_logprobs"),
        ({}, {**SCORED, "max_tokens": 1, "max_completion_tokens": 9}, "prompt_logprobs"),
        ({"fingerprint": BFLOAT16}, {**SCORED, "max_tokens": 1}, "prompt_logprobs"),
        ({"state": "starting"}, {**SCORED, "max_tokens": 1}, "prompt_logprobs"),
        ({}, {"max_tokens": 2}, ""),
        ({}, {"max_tokens": 1, "max_completion_tokens": 2}, ""),
        ({"first_tokens": "b"}, {"max_tokens": 1}, ""),
        ({"first_tokens": ""}, {"max_tokens": 1}, ""),
        ({"fingerprint": BFLOAT16}, {"max_tokens": 1}, "no_prefill_matches"),
    ],
)
def test_tokens_are_made_by_a_decode_node(maker: dict[str, Any], fields: dict[str, Any], label: str) -> None:
    """Also one alone, or the scores of a prompt, where a prefill node has other weights, samples otherwise or is not ready."""
    taker = node("decode", first_tokens="a")

    chosen = planner([node("prefill", **{"first_tokens": "a", **maker})], [taker]).first(request(fields))

    assert (chosen.decode, chosen.label) == (taker, label)
    assert isinstance(chosen, LocalPlan if label else DisaggregatedPlan)
