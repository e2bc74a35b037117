"""Plans with nodes whose engines do not answer for a while."""

from contextlib import nullcontext
from typing import Literal

import pytest

from baton.proxy.errors import BadGatewayError, FailureKind, NoRoomError, UnavailableError
from baton.proxy.nodes.node import LONGEST_SILENCE_S, Node
from baton.proxy.planning.outcome import DecodeFailed
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.planning.retry_policy import History
from tests.unit.proxy.members import computing, info, node, request
from tests.unit.proxy.planning.planners import P_FAILED, pair, planner


def silent(role: Literal["prefill", "decode"], for_s: float = 0.0) -> Node:
    now_s = [0.0]
    made = node(role)
    made.clock = lambda: now_s[0]
    made.describe(info(role, state="silent"))
    now_s[0] = for_s
    return made


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
