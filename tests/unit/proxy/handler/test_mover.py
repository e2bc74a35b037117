"""KV that is sent ahead of a stream: what is asked of the nodes, and what becomes of the stream."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from baton.contracts.http import LOCAL
from baton.contracts.kv_transfer import new_transfer_id
from baton.proxy.errors import FailureKind, NodeAnsweredError
from baton.proxy.handler.mover import MOST_AHEAD, Mover
from baton.proxy.planning.outcome import (
    DecodeFailed,
    DecodeRefused,
    Opened,
    PrefillDone,
    PrefillFailed,
    PrefillRefused,
)
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.planning.retry_policy import NOTHING_YET
from baton.proxy.resume.stream import Stream
from tests.unit.proxy.members import node
from tests.unit.proxy.resume.test_stream import event, gap, stream

FETCHED, RECOMPUTED = (Opened(Mock(headers=headers), b"") for headers in ([], [(b"x-baton-path", b"recomputed")]))
ANSWERED = NodeAnsweredError(418)


class Attempts:
    """Runs plans, which end as a test says."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = [*outcomes]
        self.ran: list[tuple[Any, Any, Any]] = []

    @asynccontextmanager
    async def run(self, plan: Any, request: Any, relay: Any) -> AsyncIterator[Any]:
        self.ran.append((plan, request, relay))
        outcome = self.outcomes.pop(0)
        if outcome is None:
            await asyncio.sleep(60)
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome


def running(*choices: int, **more: Any) -> Stream:
    """A stream with so many tokens of each choice: 1, 2, … of the first one, 11, 12, … of the second."""
    made = stream(n=max(1, len(choices)), **more)
    made.begin_decode(gap())
    made.take(
        b"".join(event(10 * at + each, index=at) for at, count in enumerate(choices) for each in range(1, count + 1))
    )
    return made


PLAN = DisaggregatedPlan(
    decode=node("decode", "http://to"),
    prefill=node("decode", "http://from", 1),
    moves=True,
    rank=0,
    transfer_id=new_transfer_id(),
)


def mover(*outcomes: Any, timeout_s: float = 60.0) -> tuple[Mover, Attempts, Mock]:
    attempts, metrics = Attempts(*outcomes), Mock()
    return Mover(Mock(), attempts, metrics, timeout_s=timeout_s), attempts, metrics  # type: ignore[arg-type]


async def test_the_kv_of_a_stream_goes_ahead_and_the_rest_follows_by_another_transfer() -> None:
    made, attempts, metrics = mover(FETCHED)

    onto = await made.send(PLAN, running(3))

    ((plan, asked, relay),) = attempts.ran
    assert isinstance(onto, DisaggregatedPlan)
    assert len({PLAN.transfer_id, plan.transfer_id, onto.transfer_id}) == 3
    for each in (plan, onto):
        assert (each.decode, each.prefill, each.moves) == (PLAN.decode, PLAN.prefill, True)
    assert (asked.start, asked.names_tokens, relay) == (((1, 2, 3),), "", None)
    assert not metrics.moved.called


async def test_each_choice_goes_ahead_and_the_other_node_computes_what_differs_since() -> None:
    """One that has said nothing has no KV of its own."""
    made, attempts, _ = mover(FETCHED, FETCHED)

    onto = await made.send(PLAN, running(2, 0, 1))

    assert [asked.start for _, asked, _ in attempts.ran] == [((1, 2),), ((21,),)]
    assert len({plan.transfer_id for plan, _, _ in attempts.ran}) == 2
    assert isinstance(onto, LocalPlan)
    assert (onto.decode, onto.path, onto.reason) == (PLAN.decode, LOCAL, "")


@pytest.mark.parametrize(
    ("outcomes", "made", "problem", "ran"),
    [
        ([], running(), "its tokens are not known", 0),
        ([RECOMPUTED], running(1, 1), "the KV has not come", 1),
        ([FETCHED, RECOMPUTED], running(1, 1), "the KV has not come", 2),
        ([DecodeFailed(FailureKind.CONNECT, "it is gone")], running(1), "it is gone", 1),
        ([PrefillFailed(FailureKind.CONNECT, "it is lost")], running(1), "it is lost", 1),
        ([DecodeRefused(ANSWERED)], running(1), "a leg was answered 418", 1),
        ([PrefillRefused(ANSWERED)], running(1), "a leg was answered 418", 1),
        ([PrefillDone()], running(1), "the answer has ended", 1),
        ([None], running(1), "it took too long", 1),
        ([ZeroDivisionError()], running(1), "an error of ours", 1),
    ],
)
async def test_a_stream_whose_kv_did_not_go_ahead_stays(
    caplog: pytest.LogCaptureFixture, outcomes: list[Any], made: Stream, problem: str, ran: int
) -> None:
    """It is counted, also of the node that it was to leave."""
    sender, attempts, metrics = mover(*outcomes, timeout_s=0.01 if None in outcomes else 60.0)
    before = PLAN.prefill.moves.results["failed"]

    assert await sender.send(PLAN, made) is None

    assert len(attempts.ran) == ran
    assert PLAN.prefill.moves.results["failed"] == before + 1
    metrics.moved.assert_called_once_with("failed")
    said: Any = caplog.records[-1]
    assert (said.reason, getattr(said, "from"), said.to, said.request_id) == (problem, "http://from", "http://to", "r")


@pytest.mark.parametrize(("workers", "most"), [(1, MOST_AHEAD), (2, MOST_AHEAD // 2), (2 * MOST_AHEAD, 1)])
def test_few_go_ahead_at_once_over_all_workers(workers: int, most: int) -> None:
    assert Mover(Mock(), Mock(), Mock(), timeout_s=1.0, workers=workers).most == most


def test_the_planner_chooses_where_a_stream_goes() -> None:
    plans, made = Mock(), running(1)
    chosen = Mover(plans, Mock(), Mock(), timeout_s=1.0).plan(made, PLAN.prefill, NOTHING_YET)

    assert chosen is plans.move.return_value
    plans.move.assert_called_once_with(made.asked, PLAN.prefill, NOTHING_YET)
