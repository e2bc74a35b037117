"""From plan to plan, with legs that end as a test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from baton.contracts.http import DISAGGREGATED, LOCAL, PATH_HEADER, RECOMPUTED
from baton.proxy.errors import FailureKind, NodeAnsweredError, NoRoomError, ProxyError
from baton.proxy.handler.failover import Failover
from baton.proxy.nodes.node import Node, State
from baton.proxy.planning import local_prefill_queue
from baton.proxy.planning.outcome import DecodeFailed, DecodeRefused, Opened, PrefillFailed, PrefillRefused
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan, Plan
from baton.proxy.planning.retry_policy import MIN_LEFT_S, RetryPolicy
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.resume.stream import Stream
from baton.proxy.telemetry.metrics import Metrics
from tests.support.cluster import until_true
from tests.unit.proxy.members import computing, node, request
from tests.unit.proxy.planning.planners import planner

ANSWER = Opened(cast("Any", None), b"ok")
FAILED = PrefillFailed(FailureKind.CONNECT, "it cannot be reached")
REFUSED = PrefillRefused(NodeAnsweredError(400))
LOST = DecodeFailed(FailureKind.CONNECT, "it cannot be reached")
DRAINED = DecodeFailed(FailureKind.DRAINED, "it is drained")


class Legs:
    """Pairs fail while their prefill node is in `failing`; a decode node alone computes until it is told to answer."""

    def __init__(self) -> None:
        self.failing: set[Node] = set()
        self.may_answer = asyncio.Event()

    @asynccontextmanager
    async def run(self, plan: Plan, *_: object) -> AsyncIterator[Opened | PrefillFailed]:
        if isinstance(plan, LocalPlan):
            with computing(plan.decode, plan.work_bytes):
                await self.may_answer.wait()
            yield ANSWER
        elif plan.prefill in self.failing:
            plan.prefill.lose(State.DOWN, "")
            yield FAILED
        else:
            yield ANSWER


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_prefill_queue, "LOOK_S", 0.001)


def make(
    legs: object, prefill: list[Node], decode: list[Node], *, retries: int = 9, max_attempts: int = 9
) -> tuple[Failover, RetryPolicy]:
    """A failover with room for one prompt on each decode node, and what it spends on retries."""
    policy = RetryPolicy(share=0.0, burst=retries, max_attempts=max_attempts, clock=lambda: 0.0)
    planned = planner(prefill, decode, max_own_bytes=1)
    return Failover(planned, cast("Any", legs), policy, Metrics()), policy


def watched(shared: Failover) -> Mock:
    """Return what is told of a failover's metrics."""
    shared.metrics = Mock()
    return shared.metrics


def told(metrics: Mock) -> list[str]:
    return [" ".join((name, *args)) for name, args, _ in metrics.mock_calls if name in {"retried", "denied", "moved"}]


def relay_of() -> FirstTokenRelay:
    return FirstTokenRelay(cast("Any", SimpleNamespace(record=None)), Stream(request(), resumes=False))


async def ask(shared: Failover) -> str:
    """Serve a request; return the path of the plan that was answered."""
    paths: list[str] = []
    async with asyncio.timeout(20) as deadline:
        request_attempts = shared.request_attempts(deadline)
        async with request_attempts.answer(relay_of(), lambda plan: paths.append(plan.path)):
            return paths[-1]


async def test_a_retry_that_was_granted_is_made_however_many_wait_for_theirs() -> None:
    """Ten requests stand in line; the budget had three retries when they came. A prefill node comes: none fails of it."""
    legs, decode = Legs(), node("decode")
    first, second = node("prefill", "http://1"), node("prefill", "http://2", slot=1)
    second.lose(State.DOWN, "")
    legs.failing.add(first)
    shared, _ = make(legs, [first, second], [decode], retries=3)
    with computing(decode, 1):
        asked = []
        for _ in range(10):
            first.probed = State.READY
            asked.append(asyncio.create_task(ask(shared)))
            await asyncio.sleep(0)
        second.probed = State.READY
        await until_true(lambda: sum(each.done() for each in asked) >= 3)
    legs.may_answer.set()
    paths = await asyncio.gather(*asked)

    assert sorted(paths) == [DISAGGREGATED] * 3 + [RECOMPUTED] * 7


async def test_a_new_request_does_not_go_before_those_that_stand_in_line() -> None:
    """An accepted request waits for a decode node; a new one is told to come again, although it came at the right time."""
    legs, prefill, decode = Legs(), node("prefill"), node("decode")
    legs.failing.add(prefill)
    shared, _ = make(legs, [prefill], [decode])
    with computing(decode, 1):
        accepted = asyncio.create_task(ask(shared))
        await until_true(lambda: prefill.probed is State.DOWN)
        await asyncio.sleep(0)
    with pytest.raises(NoRoomError):
        await ask(shared)
    legs.may_answer.set()

    assert await accepted == RECOMPUTED
    assert await ask(shared) == LOCAL


class LegsThatEnd:
    def __init__(self, *outcomes: Any) -> None:
        self._outcomes = list(outcomes)
        self.asked: list[str] = []  # decode nodes
        self.watch = Mock()

    @asynccontextmanager
    async def run(self, plan: Plan, *_: object) -> AsyncIterator[Any]:
        self.asked.append(plan.decode.url)
        yield self._outcomes.pop(0)


@pytest.mark.parametrize(
    ("outcomes", "nodes", "path", "spent", "counted"),
    [
        ((FAILED, ANSWER), (1, 1), RECOMPUTED, 0, ["retried prefill recompute", "denied prefill no_node"]),
        ((FAILED, ANSWER), (2, 1), DISAGGREGATED, 1, ["retried prefill another_node"]),
        ((REFUSED, ANSWER), (2, 1), RECOMPUTED, 0, ["retried prefill recompute"]),
        ((LOST, ANSWER), (1, 2), DISAGGREGATED, 1, ["retried decode another_node"]),
        ((LOST,), (1, 1), "", 0, ["denied decode no_node"]),
        # Its node was drained: nothing has failed.
        ((DRAINED, ANSWER), (1, 2), DISAGGREGATED, 0, ["retried decode another_node", "moved recomputed"]),
    ],
)
async def test_only_an_attempt_on_another_node_costs_a_retry(
    outcomes: Any, nodes: tuple[int, int], path: str, spent: int, counted: list[str]
) -> None:
    """What was paid for it is given back if it is not made."""
    prefill = [node("prefill", f"http://p{at}", slot=at) for at in range(nodes[0])]
    decode = [node("decode", f"http://d{at}", slot=at) for at in range(nodes[1])]
    shared, policy = make(LegsThatEnd(*outcomes), prefill, decode)
    metrics = watched(shared)

    with nullcontext() if path else pytest.raises(ProxyError):
        assert await ask(shared) == path

    assert 9 - policy.left == spent
    assert told(metrics) == counted
    assert metrics.decided.call_count == len(outcomes)


@pytest.mark.parametrize(
    ("settings", "left", "denied"),
    [
        ({"retries": 2}, 1, []),
        ({"retries": 0}, 0, ["denied decode budget"]),
        ({"retries": 2, "max_attempts": 1}, 2, ["denied decode attempts"]),
        ({"retries": 2, "timeout_s": MIN_LEFT_S / 2}, 2, ["denied decode deadline"]),
    ],
)
async def test_one_more_leg_of_an_answer_that_broke_costs_a_retry(
    settings: dict[str, Any], left: int, denied: list[str]
) -> None:
    """It is asked of another node; a node that is drained has not failed, and is only left."""
    timeout_s = settings.pop("timeout_s", 20.0)
    decode = [node("decode", f"http://d{at}", slot=at) for at in range(2)]
    shared, policy = make(LegsThatEnd(ANSWER), [node("prefill")], decode, **settings)
    metrics = watched(shared)
    async with asyncio.timeout(20.0) as deadline:
        attempts = shared.request_attempts(deadline)
        async with attempts.answer(relay_of(), lambda _: None):
            pass
        attempts.broke(FailureKind.DISCONNECT)
        deadline.reschedule(asyncio.get_running_loop().time() + timeout_s)
        assert attempts.may_go_on() == (not denied)
        deadline.reschedule(None)

    assert policy.left == left
    assert told(metrics) == denied


@pytest.mark.parametrize("how", [FailureKind.DISCONNECT, FailureKind.DRAINED])
async def test_a_node_on_which_an_answer_broke_is_asked_again_only_if_it_was_left_alive(how: FailureKind) -> None:
    """And only where there is no other node."""
    for others in (0, 1):
        decode = [node("decode", f"http://d{at}", slot=at) for at in range(1 + others)]
        legs = LegsThatEnd(ANSWER, ANSWER, ANSWER)
        shared, _ = make(legs, [node("prefill")], decode)
        metrics = watched(shared)
        async with asyncio.timeout(20) as deadline:
            attempts, relay = shared.request_attempts(deadline), relay_of()
            with nullcontext() if others or how is FailureKind.DRAINED else pytest.raises(ProxyError):
                for _ in range(2):
                    async with attempts.answer(relay, lambda _: None):
                        pass
                    attempts.broke(how)
        first = legs.asked[0]
        assert [url == first for url in legs.asked] == [True] + [False] * others + [True] * (
            how is FailureKind.DRAINED and not others
        )
        assert told(metrics) == ["moved recomputed"] * (how is FailureKind.DRAINED and others)


@pytest.mark.parametrize(("takers", "last"), [(3, "http://d2"), (2, "http://d0")])
async def test_a_node_that_was_left_is_asked_again_only_where_there_is_no_other(takers: int, last: str) -> None:
    """It is well, and has least to do; the node after it has failed."""
    decode = [node("decode", f"http://d{at}", slot=at) for at in range(takers)]
    legs = LegsThatEnd(DRAINED, LOST, ANSWER)
    shared, _ = make(legs, [node("prefill")], decode)
    with ExitStack() as busy:
        for at, one in enumerate(decode):
            for _ in range(at):
                busy.enter_context(one.carrying(1))
        await ask(shared)

    assert legs.asked == ["http://d0", "http://d1", last]


FETCHED, COMPUTED = (
    Opened(cast("Any", SimpleNamespace(headers=headers)), b"ok")
    for headers in ([], [(PATH_HEADER.encode(), RECOMPUTED.encode())])
)


@pytest.mark.parametrize(
    ("outcomes", "makers", "has_kv"),
    [((FETCHED,), 1, True), ((COMPUTED,), 1, False), ((FETCHED,), 0, False), ((FAILED, FETCHED), 1, False)],
    ids=["fetched", "computed by the decode node", "no prefill node", "it failed"],
)
async def test_which_nodes_have_the_kv_of_an_answer(outcomes: Any, makers: int, *, has_kv: bool) -> None:
    """A stream that is open is watched as one whose node has it, in any case."""
    prefill, decode = [node("prefill") for _ in range(makers)], node("decode")
    legs, relay = LegsThatEnd(*outcomes), relay_of()
    shared, _ = make(legs, prefill, [decode])
    async with asyncio.timeout(20) as deadline:
        attempts = shared.request_attempts(deadline)
        assert attempts.has_kv() is None
        async with attempts.answer(relay, lambda _: None):
            assert attempts.watching(relay) is legs.watch.watching.return_value

    legs.watch.watching.assert_called_once_with(decode, attempts._history, relay, has_kv=True)
    assert attempts.has_kv() == ((decode, prefill[0]) if has_kv else None)


def test_requests_that_come_earn_retries() -> None:
    shared, _ = make(LegsThatEnd(), [], [])
    shared.retries = RetryPolicy(share=0.5, burst=1, max_attempts=9, clock=lambda: 0.0)
    shared.retries.spend()
    left = []
    for _ in range(2):
        shared.request_attempts(Mock())
        left.append(shared.retries.left)

    assert left == [0, 1]


NOT_STARTED = DecodeRefused(NodeAnsweredError(400))


@pytest.mark.parametrize(
    ("outcomes", "asked", "counted", "moved"),
    [
        ([FETCHED], ["http://d1"], ["moved moved"], "moved"),
        ([COMPUTED], ["http://d1"], ["moved recomputed"], "recomputed"),
        # Whatever the other node had of it, it may go on without: any that starts with tokens.
        (
            [NOT_STARTED, FETCHED],
            ["http://d1", "http://d2"],
            ["retried decode another_node", "moved recomputed"],
            "recomputed",
        ),
    ],
    ids=["with its KV", "without", "refused"],
)
async def test_an_answer_that_leaves_goes_on_where_its_kv_was_sent(
    outcomes: list[Any], asked: list[str], counted: list[str], moved: Any
) -> None:
    """Whether the KV was there is counted, also for the node that it left, and how long its client waited."""
    described: dict[str, Any] = {"first_tokens": "3-alike", "control_addresses": ["tcp://d:1"]}
    maker, *decode = node("prefill"), *(node("decode", f"http://d{at}", at + 1, **described) for at in range(3))
    left, taker, _ = decode
    legs, relay = LegsThatEnd(FETCHED, *outcomes), relay_of()
    shared, _ = make(legs, [maker], decode)
    metrics = watched(shared)
    async with asyncio.timeout(20) as deadline:
        attempts = shared.request_attempts(deadline)
        with ExitStack() as busy:
            for one in (taker, decode[2], decode[2]):
                busy.enter_context(one.carrying(1))
            async with attempts.answer(relay, lambda _: None):
                pass
            attempts.broke(FailureKind.DRAINED)
            relay.stream.asked = replace(relay.stream.asked, start=((1, 2),))
            onto = DisaggregatedPlan(decode=taker, prefill=left, moves=True, rank=0, transfer_id="")
            relay.onto = cast("Any", onto)
            async with attempts.answer(relay, lambda _: None):
                pass

    assert legs.asked == ["http://d0", *asked]
    assert relay.onto is None
    assert told(metrics) == counted
    assert left.moves.results == {moved: 1}
    assert relay.stream.on_gap is not None
    relay.stream.on_gap(0.5)
    metrics.move_gap.assert_called_once_with(moved, 0.5)
    assert attempts.has_kv() == (decode[len(outcomes)], maker)
