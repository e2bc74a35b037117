"""The next plan of a request, after a leg of it has failed."""

from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from baton.contracts.http import AHEAD, LOCAL, RECOMPUTED
from baton.proxy.errors import BadGatewayError, FailureKind, NodeAnsweredError, NoRoomError, UnavailableError
from baton.proxy.nodes.node import State
from baton.proxy.planning.outcome import DecodeFailed, PrefillRefused
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.planning.retry_policy import History
from tests.unit.proxy.members import BFLOAT16, info, node, request
from tests.unit.proxy.planning.planners import D_FAILED, OTHER_PROTOCOL, P_FAILED, SENDS, WIDE, pair, planner


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
