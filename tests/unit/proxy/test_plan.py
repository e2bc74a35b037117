from typing import Any, Literal

import pytest

from contracts.http import LOCAL, RECOMPUTED
from proxy import classify, plan
from proxy.choose import LeastPromptWork, LeastRequests
from proxy.errors import BadGatewayError, Kind, NodeAnsweredError, UnavailableError, UnknownModelError
from proxy.node import Node, State
from proxy.outcome import DecodeFailed, PrefillFailed, PrefillRefused
from proxy.plan import Alone, Pair, Planner
from tests.unit.proxy.members import BFLOAT16, node, request

P_FAILED = PrefillFailed(Kind.CONNECT, "it cannot be reached")
D_FAILED = DecodeFailed(Kind.CONNECT, "it cannot be reached")


def planner(
    prefill: list[Node], decode: list[Node], when_no_prefill: Literal["decode_local", "refuse"] = "decode_local"
) -> Planner:
    """Make a planner with the default policies."""
    policies: dict[str, Any] = {"prefill_policy": LeastPromptWork(), "decode_policy": LeastRequests()}
    return Planner(prefill, decode, when_no_prefill=when_no_prefill, **policies)


def test_a_plain_request_gets_a_pair() -> None:
    """With both sides ready, each plan has two nodes and an id of its own."""
    planned = planner([node("prefill")], [node("decode")])

    first, second = planned.first(request()), planned.first(request())

    assert isinstance(first, Pair)
    assert isinstance(second, Pair)
    assert first.control_address == "tcp://p:1"
    assert first.transfer_id != second.transfer_id


def test_an_uncovered_request_is_local_with_its_reason() -> None:
    """The classification's reason becomes the plan's."""
    chosen = planner([node("prefill")], [node("decode")]).first(request({"prompt_logprobs": 1}))

    assert isinstance(chosen, Alone)
    assert (chosen.path, chosen.reason) == (LOCAL, classify.PROMPT_LOGPROBS)


@pytest.mark.parametrize(
    ("prefill", "reason"),
    [
        ([], plan.NO_PREFILL_CONFIGURED),
        ([node("prefill", state="starting")], plan.NO_PREFILL_READY),
        ([node("prefill", control_addresses=[])], plan.NO_PREFILL_READY),
        ([node("prefill", served_models=["another"])], plan.NO_PREFILL_READY),
        ([node("prefill", fingerprint=BFLOAT16)], plan.NO_PREFILL_MATCHES),
        ([node("prefill", fingerprint=None)], plan.NO_PREFILL_MATCHES),
    ],
)
def test_without_a_usable_prefill_node_the_policy_decides(prefill: list[Node], reason: str) -> None:
    """`decode_local` computes on the decode node and says why; `refuse` says the same as a 503."""
    chosen = planner(prefill, [node("decode")]).first(request())

    assert isinstance(chosen, Alone)
    assert (chosen.path, chosen.reason) == (LOCAL, reason)
    with pytest.raises(UnavailableError, match=reason):
        planner(prefill, [node("decode")], "refuse").first(request())


def test_only_nodes_with_equal_fingerprints_are_paired() -> None:
    """The decode node that a prefill node can serve is preferred to an idle one that none can."""
    matching, other = node("decode"), node("decode", fingerprint=BFLOAT16)
    planned = planner([node("prefill")], [other, matching])

    chosen = [planned.first(request()) for _ in range(4)]

    assert all(isinstance(each, Pair) and each.decode is matching for each in chosen)


def test_no_decode_node_is_503_and_an_unknown_model_404() -> None:
    """A model that a lost node serves is unavailable; one that nobody ever served does not exist."""
    lost = node("decode")
    lost.lose(State.DOWN, "gone")
    with pytest.raises(UnavailableError):
        planner([], [lost]).first(request())
    with pytest.raises(UnknownModelError):
        planner([], [node("decode")]).first(request({"model": "unheard of"}))
    with pytest.raises(UnavailableError):
        planner([], [lost, node("decode", served_models=["another"])]).first(request())


def test_a_failed_prefill_leg_is_recomputed_on_the_same_decode_node() -> None:
    """The second plan needs nobody else."""
    planned = planner([node("prefill")], [node("decode"), node("decode")])
    first = planned.first(request())

    second = planned.after(first, P_FAILED, request(), [])

    assert isinstance(second, Alone)
    assert (second.decode, second.path) == (first.decode, RECOMPUTED)
    assert "cannot be reached" in second.reason


def test_under_refuse_a_failed_prefill_leg_ends_the_request() -> None:
    """A node's own 4xx is relayed, anything else is a 503."""
    planned = planner([node("prefill")], [node("decode")], "refuse")
    first = planned.first(request())
    refusal = NodeAnsweredError(400, b"{}")

    with pytest.raises(UnavailableError):
        planned.after(first, P_FAILED, request(), [])
    with pytest.raises(NodeAnsweredError) as raised:
        planned.after(first, PrefillRefused(refusal), request(), [])
    assert raised.value is refusal


def test_a_failed_decode_leg_tries_one_other_node_with_a_new_transfer() -> None:
    """Another node is tried once; then the request ends with the failure."""
    planned = planner([node("prefill")], [node("decode"), node("decode"), node("decode")])
    first = planned.first(request())

    second = planned.after(first, D_FAILED, request(), [first.decode])

    assert isinstance(first, Pair)
    assert isinstance(second, Pair)
    assert second.decode is not first.decode
    assert second.transfer_id != first.transfer_id
    with pytest.raises(BadGatewayError):
        planned.after(second, D_FAILED, request(), [first.decode, second.decode])


def test_a_failed_decode_leg_without_another_node_ends_with_its_own_error() -> None:
    """The node's own OpenAI-shaped error is what the client gets, where there is one."""
    planned = planner([], [node("decode")])
    first = planned.first(request())
    own = NodeAnsweredError(500, b'{"error":{}}')

    with pytest.raises(BadGatewayError):
        planned.after(first, D_FAILED, request(), [first.decode])
    with pytest.raises(NodeAnsweredError) as raised:
        planned.after(first, DecodeFailed(Kind.STATUS, "500", own), request(), [first.decode])
    assert raised.value is own


def test_requests_rotate_over_data_parallel_ranks() -> None:
    """Each rank of a data-parallel prefill node is announced with its own control address."""
    wide = node("prefill", control_addresses=["tcp://p:1", "tcp://p:2"], data_parallel_size=2)
    planned = planner([wide], [node("decode")])

    chosen = [planned.first(request()) for _ in range(4)]

    assert {(each.rank, each.control_address) for each in chosen if isinstance(each, Pair)} == {
        (0, "tcp://p:1"),
        (1, "tcp://p:2"),
    }
