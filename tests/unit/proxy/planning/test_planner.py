from contextlib import nullcontext
from typing import Any, Literal
from unittest.mock import Mock

import msgspec
import pytest
from msgspec.structs import replace

from baton.contracts.http import AHEAD, LOCAL, RECOMPUTED
from baton.contracts.kv_transfer import PROTOCOL_VERSION
from baton.contracts.node_info import Adapter
from baton.proxy.errors import (
    BadGatewayError,
    FailureKind,
    NodeAnsweredError,
    NoRoomError,
    UnavailableError,
    UnknownModelError,
)
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.node import LONGEST_SILENCE_S, Node, State
from baton.proxy.planning import reasons
from baton.proxy.planning.outcome import DecodeFailed, PrefillFailed, PrefillRefused
from baton.proxy.planning.placement import Placement, Targets
from baton.proxy.planning.planner import Planner, key_of
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.planning.retry_policy import History
from baton.proxy.request import eligibility
from baton.proxy.request.endpoints import COMPLETIONS, RESPONSES
from baton.proxy.request.parse import parse
from baton.proxy.routing.local_prefill_policy import LocalPrefillPolicy
from baton.proxy.routing.policies import LeastLoad, Policy, PrefixAffinity
from baton.proxy.routing.prefixes import CHUNK_BYTES, STEP_BYTES
from baton.proxy.routing.router import Router
from tests.unit.proxy.members import BFLOAT16, computing, info, node, request

OTHER_PROTOCOL = {"protocol": str(PROTOCOL_VERSION + 1)}
WIDE: dict[str, Any] = {"control_addresses": ["tcp://p:1", "tcp://p:2"], "data_parallel_size": 2}
SENDS: dict[str, Any] = {"both_ways": True, "control_addresses": ["tcp://d:1"], "first_tokens": "3-alike"}
SCORED = {"echo": True, "logprobs": 1}
P_FAILED = PrefillFailed(FailureKind.CONNECT, "it cannot be reached")
D_FAILED = DecodeFailed(FailureKind.CONNECT, "it cannot be reached")


def planner(
    prefill: list[Node],
    decode: list[Node],
    when_no_prefill: Literal["decode_local", "refuse"] = "decode_local",
    *,
    decode_policy: Policy | None = None,
    local_below_bytes: int = 0,
    max_own_bytes: int = 1 << 20,
    prefill_patience_s: float = 5.0,
    targets: Targets | None = Targets(),  # noqa: B008  # immutable
) -> Planner:
    return Planner(
        prefill,
        decode,
        prefill_router=Router(PrefixAffinity()),
        decode_router=Router(decode_policy or LeastLoad()),
        local_policy=LocalPrefillPolicy(local_below_bytes=local_below_bytes, max_own_bytes=max_own_bytes),
        when_no_prefill=when_no_prefill,
        key_header="x-session-id",
        prefill_patience_s=prefill_patience_s,
        targets=targets,
    )


def silent(role: Literal["prefill", "decode"], for_s: float = 0.0) -> Node:
    now_s = [0.0]
    made = node(role)
    made.clock = lambda: now_s[0]
    made.describe(info(role, state="silent"))
    now_s[0] = for_s
    return made


def pair(made: Planner) -> DisaggregatedPlan:
    chosen = made.first(request())
    assert isinstance(chosen, DisaggregatedPlan)
    return chosen


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


def test_a_plain_request_gets_a_pair() -> None:
    """With both sides ready, each plan has two nodes and an id of its own; ranks of a prefill node take turns."""
    planned = planner([node("prefill", **WIDE)], [node("decode")])

    chosen = [pair(planned) for _ in range(4)]

    assert len({each.transfer_id for each in chosen}) == 4
    assert {(each.rank, each.control_address) for each in chosen} == {(0, "tcp://p:1"), (1, "tcp://p:2")}


@pytest.mark.parametrize(
    ("prefill", "decode", "label"),
    [
        ([], {}, "no_prefill_configured"),
        ([{"state": "starting"}], {}, "no_prefill_ready"),
        ([{"control_addresses": []}], {}, "no_prefill_ready"),
        ([{"served_models": ["another"]}], {}, "no_prefill_ready"),
        ([{"fingerprint": BFLOAT16}], {}, "no_prefill_matches"),
        ([{"fingerprint": None}], {}, "no_prefill_matches"),
        ([{"versions": OTHER_PROTOCOL}], {}, "no_prefill_speaks"),
        ([{"versions": OTHER_PROTOCOL}, {"fingerprint": BFLOAT16}], {}, "no_prefill_speaks"),
        # They understand each other, and would refuse this proxy's parameters.
        ([{"versions": OTHER_PROTOCOL}], {"versions": OTHER_PROTOCOL}, "no_prefill_speaks"),
    ],
)
def test_without_a_usable_prefill_node_the_policy_decides(
    prefill: list[dict[str, Any]], decode: dict[str, Any], label: str
) -> None:
    """`decode_local` computes on the decode node and says why; `refuse` says the same as a 503."""
    nodes = [node("prefill", **each) for each in prefill], [node("decode", **decode)]
    chosen = planner(*nodes).first(request())

    assert isinstance(chosen, LocalPlan)
    assert (chosen.path, chosen.label) == (LOCAL, label)
    with pytest.raises(UnavailableError, match=chosen.reason):
        planner(*nodes, "refuse").first(request())


@pytest.mark.parametrize("difference", [{"fingerprint": BFLOAT16}, {"versions": OTHER_PROTOCOL}])
def test_only_nodes_that_understand_each_other_are_paired(difference: dict[str, Any]) -> None:
    """Half-way through an upgrade requests go to the pairs that do, although others are idle."""
    maker, taker = node("prefill"), node("decode")
    planned = planner([node("prefill", versions=OTHER_PROTOCOL), maker], [node("decode", **difference), taker])

    chosen = [pair(planned) for _ in range(4)]

    assert {(each.prefill, each.decode) for each in chosen} == {(maker, taker)}


def test_no_decode_node_is_503_and_an_unknown_model_404() -> None:
    """A model that a lost node serves is unavailable; one that no node ever served does not exist."""
    lost = node("decode")
    lost.lose(State.DOWN, "gone")
    for decode in ([lost], [lost, node("decode", served_models=["another"])]):
        with pytest.raises(UnavailableError):
            planner([], decode).first(request())
    with pytest.raises(UnknownModelError):
        planner([], [node("decode")]).first(request({"model": "unheard of"}))


def test_a_failed_prefill_leg_is_tried_on_another_prefill_node_with_the_same_decode_node() -> None:
    """The decode node is healthy: it is kept, with what it has in its prefix cache, and gets a new transfer."""
    planned = planner([node("prefill"), node("prefill")], [node("decode"), node("decode")])
    first = pair(planned)

    second = planned.after(first, P_FAILED, request(), History().without(first.prefill), may_retry=True)

    assert isinstance(second, DisaggregatedPlan)
    assert (second.decode, second.prefill is first.prefill) == (first.decode, False)
    assert second.transfer_id != first.transfer_id


@pytest.mark.parametrize(
    "other", ["none", "lost", "unready", "other fingerprint", "other protocol", "not granted", "refused"]
)
def test_without_another_prefill_node_the_same_decode_node_recomputes(other: str) -> None:
    """That needs no other node, and no permission."""
    lost, spare = node("prefill"), node("prefill")
    if other == "other fingerprint":
        spare = node("prefill", fingerprint=BFLOAT16)
    if other == "other protocol":
        spare = node("prefill", versions=OTHER_PROTOCOL)
    planned = planner([lost] if other == "none" else [lost, spare], [node("decode")])
    first = DisaggregatedPlan(decode=planned.first(request()).decode, prefill=lost, rank=0, transfer_id="")
    if other == "unready":
        spare.lose(State.DOWN, "gone")
    history = History().without(lost)
    if other == "lost":
        history = history.without(spare)
    failure = PrefillRefused(NodeAnsweredError(400, b"{}")) if other == "refused" else P_FAILED

    second = planned.after(first, failure, request(), history, may_retry=other != "not granted")

    assert isinstance(second, LocalPlan)
    assert (second.decode, second.path) == (first.decode, RECOMPUTED)
    why = "refused the request: 400" if other == "refused" else "failed: it cannot be reached"
    assert second.reason == failure.reason == f"the prefill node {why}"


@pytest.mark.parametrize("prefill", [1, 2])
@pytest.mark.parametrize("how", ["draining", "down", "removed"])
def test_a_decode_node_that_takes_no_more_work_is_not_kept(prefill: int, how: str) -> None:
    """The request may have stood in line for long; only where there is no other node it is tried all the same."""
    takers = [node("decode", "http://1"), node("decode", "http://2", slot=1)]
    planned = planner([node("prefill") for _ in range(prefill)], takers)
    first = pair(planned)
    match how:
        case "draining":
            first.decode.draining = True
        case "down":
            first.decode.lose(State.DOWN, "gone")
        case _:
            takers.remove(first.decode)
    history = History().without(first.prefill)

    second = planned.after(first, P_FAILED, request(), history, may_retry=True)
    [other] = [other for other in takers if other is not first.decode]
    other.lose(State.DOWN, "gone")
    third = planned.after(first, P_FAILED, request(), history, may_retry=True)

    assert second.decode is other
    assert isinstance(second, DisaggregatedPlan if prefill == 2 else LocalPlan)
    assert third.decode is first.decode


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("is_optional", [True, False])
def test_a_prompt_with_tokens_of_its_answer_leaves_its_decode_node_only_for_one_that_may_go_on_with_it(
    starts: bool, is_optional: bool
) -> None:
    """Where no node starts with them, one may answer from the start if the client has nothing yet."""
    left, plain = (node("decode", f"http://{slot}", slot) for slot in range(2))
    others = [plain, node("decode", "http://2", 2, **SENDS)] if starts else [plain]
    left.draining = True
    failed = DisaggregatedPlan(decode=left, prefill=node("prefill"), rank=0, transfer_id="")
    asked = replace(request(), start=((1, 2),), names_tokens=AHEAD if is_optional else "")

    plan = planner([], [left, *others]).after(failed, P_FAILED, asked, History(), may_retry=True)
    others[-1].begin(1)
    with nullcontext() if starts or is_optional else pytest.raises(UnavailableError):
        assert planner([node("prefill")], [left, *others]).first(asked).decode is others[-1]

    assert plan.decode is (others[-1] if starts or is_optional else left)


def test_a_prefill_node_that_restarted_with_fewer_ranks_is_not_kept() -> None:
    """Its prefix cache is gone, and perhaps the rank as well."""
    maker = node("prefill", **WIDE)
    planned = planner([maker], [node("decode"), node("decode")])
    first = next(made for _ in range(4) if (made := pair(planned)).rank == 1)
    maker.describe(info("prefill", incarnation="2"))

    second = planned.after(first, D_FAILED, request(), History().without(first.decode), may_retry=True)

    assert isinstance(second, DisaggregatedPlan)
    assert second.control_address == "tcp://p:1"


def test_under_refuse_another_prefill_node_is_tried_and_no_decode_node_computes_prompts() -> None:
    """Where there is no other, a node's own 4xx is relayed; anything else is a 503."""
    planned = planner([node("prefill"), node("prefill")], [node("decode")], "refuse")
    first = pair(planned)
    history = History().without(first.prefill)

    second = planned.after(first, P_FAILED, request(), history, may_retry=True)

    assert isinstance(second, DisaggregatedPlan)
    history = history.without(second.prefill)
    with pytest.raises(UnavailableError):
        planned.after(second, P_FAILED, request(), history, may_retry=True)
    refusal = NodeAnsweredError(400, b"{}")
    with pytest.raises(NodeAnsweredError) as raised:
        planned.after(second, PrefillRefused(refusal), request(), history, may_retry=True)
    assert raised.value is refusal


def test_a_failed_decode_leg_moves_to_another_node_and_keeps_the_prefill_node() -> None:
    """That node, and that rank of it, has the prompt in its prefix cache by now; the transfer is a new one."""
    planned = planner([node("prefill", **WIDE) for _ in range(3)], [node("decode"), node("decode")])
    for _ in range(6):
        first = pair(planned)

        second = planned.after(first, D_FAILED, request(), History().without(first.decode), may_retry=True)

        assert isinstance(second, DisaggregatedPlan)
        assert second.decode is not first.decode
        assert (second.prefill, second.rank) == (first.prefill, first.rank)
        assert second.transfer_id != first.transfer_id


@pytest.mark.parametrize(("others", "may_retry"), [(0, True), (1, False)])
def test_a_failed_decode_leg_that_is_not_tried_again_ends_with_its_error(others: int, *, may_retry: bool) -> None:
    """For want of another node, or because it may not; the node's own OpenAI-shaped error, where there is one."""
    planned = planner([], [node("decode") for _ in range(1 + others)])
    first = planned.first(request())
    history = History().without(first.decode)
    own = NodeAnsweredError(500, b'{"error":{}}')

    with pytest.raises(BadGatewayError):
        planned.after(first, D_FAILED, request(), history, may_retry=may_retry)
    with pytest.raises(NodeAnsweredError) as raised:
        planned.after(first, DecodeFailed(FailureKind.STATUS, "500", own), request(), history, may_retry=may_retry)
    assert raised.value is own


def test_a_prompt_goes_where_its_beginning_went() -> None:
    """The prefill node that has seen a conversation's earlier turns gets the next one; another adapter's it has not seen."""
    prefill = [node("prefill", f"http://p{slot}", slot=slot) for slot in range(4)]
    made = planner(prefill, [node("decode", slot=9)])
    story = "x" * 10_000

    def choose(prompt: str) -> Node:
        chosen = made.first(request({"prompt": prompt}))
        assert isinstance(chosen, DisaggregatedPlan)
        return chosen.prefill

    first = choose(story)

    assert {choose(f"{story} and then {turn}") for turn in range(9)} == {first}
    assert len({choose(f"{turn} " * 5_000) for turn in range(9)}) > 1


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_prompt_that_is_little_or_mostly_known_is_computed_where_it_is_decoded(attempts: int) -> None:
    """What counts is what that decode node lacks, as far as its policy knows."""
    made = planner(
        [node("prefill")], [node("decode")], decode_policy=PrefixAffinity(), local_below_bytes=3 * CHUNK_BYTES
    )
    story = "x" * (8 * CHUNK_BYTES)

    chosen = [
        made.first(request({"prompt": prompt}), History(attempts=attempts))
        for prompt in ("short", story, story + " and then?", "y" + story)
    ]

    assert [type(each) for each in chosen] == [LocalPlan, DisaggregatedPlan, LocalPlan, DisaggregatedPlan]
    assert isinstance(chosen[2], LocalPlan)
    assert (chosen[2].reason, chosen[2].label) == (reasons.SHORT, "short")
    assert chosen[2].work_bytes < CHUNK_BYTES


@pytest.mark.parametrize(("fields", "is_new"), [({}, False), (SCORED, True)])
def test_what_a_decode_node_has_of_a_prompt_that_it_computed_counts_unless_the_prompt_is_scored(
    fields: dict[str, Any], *, is_new: bool
) -> None:
    """Log probabilities of a prompt skip the prefix cache."""
    made = planner([node("prefill")], [node("decode")], decode_policy=PrefixAffinity(), local_below_bytes=1 << 20)
    known_bytes = 9 * CHUNK_BYTES + 3 * STEP_BYTES
    asked = request({"prompt": "x" * known_bytes, **fields})

    plans = [made.first(asked) for _ in range(2)]

    rest = asked.prompt_bytes - known_bytes
    assert [plan.work_bytes for plan in plans] == [asked.prompt_bytes, asked.prompt_bytes if is_new else rest]


def test_every_reason_has_a_label() -> None:
    sentences = {value for name, value in vars(eligibility).items() if name.isupper() and isinstance(value, str)}

    assert sentences <= set(reasons.LABELS)
    assert len(set(reasons.LABELS.values())) == len(reasons.LABELS)


def test_without_prefill_nodes_a_full_decode_node_is_passed_by() -> None:
    full, free = node("decode", "http://d0"), node("decode", "http://d1", slot=1)
    made = planner([], [full, free], max_own_bytes=1000)
    full.own_prompt_bytes = 900

    assert {made.first(request({"prompt": "x" * 200})).decode.url for _ in range(4)} == {free.url}
    free.own_prompt_bytes = 900
    with pytest.raises(NoRoomError):
        made.first(request({"prompt": "x" * 200}))
    assert made.first(request({"prompt": "x" * 50})).decode in (full, free)
    assert isinstance(made.first(request({"prompt": "x" * 200, "prompt_logprobs": 1})), LocalPlan)


def test_after_a_failed_prefill_leg_another_decode_node_computes_what_is_too_much_for_the_first() -> None:
    """No permission is needed: no node has computed it yet. With all of them full the request has to wait."""
    first, other, lost = (node("decode", f"http://d{slot}", slot=slot) for slot in range(3))
    made = planner([], [first, other, lost], max_own_bytes=1000)
    failed = DisaggregatedPlan(decode=first, prefill=node("prefill"), rank=0, transfer_id="")
    history = History().without(failed.prefill).without(lost)
    asked = request({"prompt": "x" * 200})

    here = made.after(failed, P_FAILED, asked, history, may_retry=False)
    first.own_prompt_bytes = 900
    there = made.after(failed, P_FAILED, asked, history, may_retry=False)
    other.own_prompt_bytes = 900

    assert (here.decode, there.decode, there.path, there.label) == (first, other, RECOMPUTED, "prefill_failed")
    assert isinstance(here, LocalPlan)
    assert here.work_bytes == asked.prompt_bytes
    with pytest.raises(NoRoomError):
        made.after(failed, P_FAILED, asked, history, may_retry=False)


def test_after_a_failed_decode_leg_full_decode_nodes_are_waited_for() -> None:
    """The request was accepted; its first node's error is not its end."""
    first, full = node("decode", "http://d0"), node("decode", "http://d1", slot=1)
    made = planner([], [first, full], max_own_bytes=1000)
    full.own_prompt_bytes = 1000
    failed = LocalPlan(decode=first, path=LOCAL, reason="")

    with pytest.raises(NoRoomError):
        made.after(failed, D_FAILED, request(), History().without(first), may_retry=True)


@pytest.mark.parametrize(
    ("headers", "body", "key"),
    [
        ([(b"x-session-id", b"s1")], {"user": "u"}, "s1"),
        ([], {"user": "u"}, '"u"'),
        ([], {"user": None}, ""),
        ([], {}, ""),
    ],
)
def test_a_session_is_named_by_a_header_or_by_its_user(
    headers: list[tuple[bytes, bytes]], body: dict[str, Any], key: str
) -> None:
    """What `consistent_hash` keeps on one node."""
    asked = parse(COMPLETIONS, "id", headers, msgspec.json.encode({"model": "m", "prompt": "x", **body}))

    assert key_of(asked, "x-session-id") == key


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_silent_node_gets_work_where_no_other_is_ready(role: Literal["prefill", "decode"]) -> None:
    """Waiting for it may help, a refusal cannot; beside a node that answers it gets nothing."""
    quiet, other = silent(role), node("decode" if role == "prefill" else "prefill")
    nodes = {role: [quiet], other.role: [other]}
    planned = planner(nodes["prefill"], nodes["decode"])

    alone = planned.first(request())
    nodes[role].append(node(role))
    beside = [planned.first(request()) for _ in range(4)]

    assert getattr(alone, role) is quiet
    assert all(getattr(each, role) is not quiet for each in beside)


def test_a_decode_node_is_used_however_long_its_engine_is_silent() -> None:
    """Its node would say if the engine's process were gone. One that an operator drains is not used."""
    quiet = silent("decode", for_s=10 * LONGEST_SILENCE_S)
    planned = planner([node("prefill")], [quiet])

    assert pair(planned).decode is quiet
    quiet.draining = True
    with pytest.raises(UnavailableError):
        planned.first(request())


@pytest.mark.parametrize(("kind", "again"), [(FailureKind.TIMEOUT, True), (FailureKind.STATUS, False)])
def test_the_last_decode_node_is_asked_again_after_silence_and_not_after_a_failure(
    kind: FailureKind, *, again: bool
) -> None:
    """As often as a request may be tried; another node comes first."""
    taker = silent("decode")
    members = [taker]
    planned = planner([node("prefill")], members)
    first, failure = planned.first(request()), DecodeFailed(kind, "no answer")
    history = History().after(taker, kind)

    if again:
        assert planned.after(first, failure, request(), history, may_retry=True).decode is taker
    else:
        with pytest.raises(BadGatewayError):
            planned.after(first, failure, request(), history, may_retry=True)
    members.append(node("decode"))
    assert planned.after(first, failure, request(), history, may_retry=True).decode is not taker


@pytest.mark.parametrize(
    ("for_s", "room", "when_no_prefill", "found"),
    [
        (4.0, True, "decode_local", DisaggregatedPlan),
        (6.0, True, "decode_local", LocalPlan),
        (6.0, False, "decode_local", DisaggregatedPlan),
        # Decode nodes would compute every prompt that it is given in the end.
        (LONGEST_SILENCE_S + 1, False, "decode_local", NoRoomError),
        (6.0, True, "refuse", DisaggregatedPlan),
        (10 * LONGEST_SILENCE_S, True, "refuse", DisaggregatedPlan),
    ],
)
def test_a_silent_prefill_node_is_waited_for_as_long_as_a_decode_node_would_or_as_there_is_no_other_way(
    for_s: float, when_no_prefill: Literal["decode_local", "refuse"], found: type, *, room: bool
) -> None:
    """A decode node gives it up after `peer_timeout_s`; from then on it computes prompts at once, while it has room."""
    taker = node("decode")
    planned = planner([silent("prefill", for_s)], [taker], when_no_prefill, max_own_bytes=1)

    with computing(taker, 0 if room else 1), pytest.raises(NoRoomError) if found is NoRoomError else nullcontext():
        plan = planned.first(request())
        assert isinstance(plan, found)
        assert plan.decode is taker


def test_after_a_failed_prefill_leg_a_silent_decode_node_is_kept_unless_another_answers() -> None:
    """It may have the prompt's beginning."""
    lost, taker = node("prefill"), silent("decode")
    members = [taker, silent("decode")]
    planned = planner([lost], members)
    failed = DisaggregatedPlan(decode=taker, prefill=lost, rank=0, transfer_id="")
    history = History().without(lost)

    kept = planned.after(failed, P_FAILED, request(), history, may_retry=True)
    members.append(node("decode"))
    moved = planned.after(failed, P_FAILED, request(), history, may_retry=True)

    assert (kept.decode, moved.decode) == (taker, members[-1])


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
