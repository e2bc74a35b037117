"""Attempts on a pair of nodes: how long its prefill leg counts, and what is made of how it ends."""

import asyncio
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from msgspec.structs import replace

from baton.contracts.http import PATH_HEADER, RECOMPUTED
from baton.contracts.kv_transfer import new_transfer_id
from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.handler import attempt as attempt_module
from baton.proxy.handler.attempt import CUT, prefill_params
from baton.proxy.planning.outcome import DecodeFailed, Opened, PrefillDone, PrefillFailed
from baton.proxy.planning.plans import DisaggregatedPlan
from baton.proxy.request.endpoints import COMPLETIONS, RESPONSES
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.resume.stream import Stream
from tests.support.cluster import until_true
from tests.unit.proxy.handler.attempts import SeenTrace, runner
from tests.unit.proxy.handler.test_legs import answered
from tests.unit.proxy.members import node, request
from tests.unit.proxy.resume.test_stream import ROLE, event


async def run_pair(
    monkeypatch: pytest.MonkeyPatch,
    plan: DisaggregatedPlan,
    relay: Mock,
    decode: Callable[[], Opened | DecodeFailed],
    *,
    is_computed: bool = False,
    endpoint: str = COMPLETIONS,
) -> object:
    """Run two legs, of which the prefill node's does not end, though its first event may come; return the outcome."""
    made = runner()
    monkeypatch.setattr(made.upstream, "send", Mock(return_value=Mock(at_s=1.0)))

    async def prefill_leg(_call: object, _sent: object, relay: Mock, **_: object) -> PrefillDone:
        if is_computed:
            relay.on_first_event(1.5)
        await asyncio.sleep(60)
        raise AssertionError

    async def decode_leg(*_: object) -> Opened | DecodeFailed:
        await asyncio.sleep(0.01)  # the prefill leg begins
        return decode()

    monkeypatch.setattr(made, "prefill", prefill_leg)
    trace = SeenTrace()
    asked = replace(request({"prompt": "x" * 900, "stream": True}), endpoint=endpoint, trace=trace)
    monkeypatch.setattr(attempt_module, "perf_counter", lambda: 10.0)
    attempt = made.run(plan, asked, relay)
    monkeypatch.setattr(attempt, "_decode", decode_leg)
    async with attempt as outcome:
        assert plan.decode.open_streams == isinstance(outcome, Opened)
    is_fetched = isinstance(outcome, Opened) and not outcome.recomputed
    assert cast("Any", made.cancels).add.called == (not is_fetched)
    handover, ended = plan.decode.times.handover, plan.decode.times.ended
    since_s = 10.0 - relay.began_s if is_fetched and relay.began_s else 0.0
    assert (sum(handover.counts), handover.sum_s) == (is_fetched, since_s)
    assert (sum(ended.counts), ended.sum_s) == (isinstance(outcome, Opened), 0.0)
    is_cut = isinstance(outcome, DecodeFailed)
    assert trace.ends == {"decode": "" if isinstance(outcome, Opened) else CUT} | ({"prefill": CUT} if is_cut else {})
    assert len(made._outliving) == (not is_cut)
    assert cast("Any", made.upstream.send).return_value.close.called == is_cut
    assert not is_cut or relay.on_first_event is None
    await until_true(lambda: not plan.prefill.requests)
    assert (plan.prefill.load, plan.prefill.prompt_bytes) == (0.0, 0)
    assert (plan.decode.open_streams, plan.decode.load) == (0, 0.0)
    return outcome


@pytest.mark.parametrize(
    ("is_computed", "endpoint", "waiting"), [(False, COMPLETIONS, 100), (True, COMPLETIONS, 0), (True, RESPONSES, 100)]
)
async def test_on_the_prefill_node_of_a_pair_the_new_part_of_a_prompt_waits_until_its_first_token(
    monkeypatch: pytest.MonkeyPatch, is_computed: bool, endpoint: str, waiting: int
) -> None:
    """Its leg lasts longer: until the KV is sent, or for a second after the answer's end. A leg that is cut by then has taught what a prompt takes."""
    prefill, seen = node("prefill"), list[float]()
    plan = DisaggregatedPlan(
        decode=node("decode"), prefill=prefill, rank=0, transfer_id=new_transfer_id(), work_bytes=100
    )

    def fail() -> DecodeFailed:
        seen.append(prefill.load)
        return DecodeFailed(FailureKind.DISCONNECT, "")

    await run_pair(monkeypatch, plan, Mock(stream=Mock(choices=1)), fail, is_computed=is_computed, endpoint=endpoint)

    assert seen == [waiting]
    assert prefill.prefill_time.limit_s(100) == (0.0 if waiting else 0.5)


@pytest.mark.parametrize(
    ("data", "is_first"),
    [
        (b": keep-alive\n\n", False),
        (b"\n\n", False),
        (event(1), True),
        (ROLE, True),
        (b'data: {"error": {"code": 500}}\n\n', False),
    ],
    ids=["a comment", "a comment's end", "a token", "a role", "an error"],
)
def test_the_first_event_of_a_prefill_node_is_timed(data: bytes, is_first: bool) -> None:
    """Also where the decode node was sooner, so that nothing of it passes."""
    relay, came = FirstTokenRelay(Mock(), Stream(request({"stream": True}), resumes=True)), list[float]()
    relay.stream.begin_prefill()
    relay.on_first_event = came.append

    for _ in range(2):
        relay.take(Mock(headers=[]), data)

    assert (len(came), relay.began_s) == ((1, came[0]) if is_first else (0, 0.0))


async def test_a_decode_node_that_answers_with_the_end_of_the_prefill_nodes_whole_answer_is_not_relayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client would get a second end."""
    plan = DisaggregatedPlan(decode=node("decode"), prefill=node("prefill"), rank=0, transfer_id=new_transfer_id())
    relay, answer = Mock(is_whole=True, began_s=1.5, stream=Mock(choices=1)), Mock()

    outcome = await run_pair(monkeypatch, plan, relay, lambda: Opened(answer, b"data: the token, and the end"))

    assert outcome == PrefillDone(1.5, is_whole=True)
    assert answer.close.called


@pytest.mark.parametrize(("recomputed", "began_s"), [(False, 1.5), (False, 0.0), (True, 1.5)])
async def test_a_decode_node_that_answers_has_a_stream_and_leaves_the_prefill_leg_a_moment(
    monkeypatch: pytest.MonkeyPatch, recomputed: bool, began_s: float
) -> None:
    """The prefill node is told if the KV was not fetched."""
    monkeypatch.setattr(attempt_module, "PREFILL_GRACE_S", 0.01)
    plan = DisaggregatedPlan(decode=node("decode"), prefill=node("prefill"), rank=0, transfer_id=new_transfer_id())
    relay = Mock(is_whole=False, began_s=began_s, stream=Mock(choices=1))
    answer = Mock(is_stream=True, headers=[(PATH_HEADER.encode(), RECOMPUTED.encode())] * recomputed)

    assert isinstance(await run_pair(monkeypatch, plan, relay, lambda: Opened(answer, b"data: a\n\n")), Opened)
    assert answer.close.called


@pytest.mark.parametrize(
    ("answer", "is_optional", "reported"),
    [
        (200, False, None),
        (500, False, FailureKind.STATUS),
        (500, True, None),
        (FailureKind.TIMEOUT, True, None),
        (FailureKind.CONNECT, True, FailureKind.CONNECT),
        (FailureKind.DISCONNECT, True, FailureKind.DISCONNECT),
    ],
)
async def test_what_a_prefill_leg_says_of_its_node(
    answer: int | FailureKind, is_optional: bool, reported: FailureKind | None
) -> None:
    """A leg that no client waits for tells only that the node cannot be reached."""
    made, prefill = runner(), node("prefill")
    plan = DisaggregatedPlan(decode=node("decode"), prefill=prefill, rank=0, transfer_id=new_transfer_id())
    call = replace(made.prefill_call(plan, request(), prefill_params(plan, request(), None)), is_optional=is_optional)
    sent = answered(answer, b"{}") if isinstance(answer, int) else Mock(answer=AsyncMock())
    sent.at_s = 0.0
    if isinstance(answer, FailureKind):
        sent.answer.side_effect = UpstreamError(answer, "")

    await made.prefill(call, sent, None)

    members = cast("Any", made.members)
    assert members.succeeded.called == (answer == 200) == (sum(prefill.times.answered.counts) == 1)
    assert [each.args for each in members.report.call_args_list] == ([(prefill, reported)] if reported else [])


@pytest.mark.parametrize(("moves", "kind"), [(True, FailureKind.BUSY), (False, FailureKind.TIMEOUT)])
async def test_a_node_that_does_not_send_what_it_has_in_time_is_busy(
    monkeypatch: pytest.MonkeyPatch, moves: bool, kind: FailureKind
) -> None:
    """It has no place for the request; a prompt that is computed takes its time."""
    made = runner()
    monkeypatch.setattr(made, "_move_timeout_s" if moves else "_prefill_timeout_s", 0.01)
    plan = DisaggregatedPlan(decode=node("decode"), prefill=node("prefill"), rank=0, transfer_id=new_transfer_id())
    call = made.prefill_call(plan, request(), prefill_params(plan, request(), None))

    outcome = await made.prefill(call, Mock(answer=asyncio.Event().wait), None, moves=moves)

    assert isinstance(outcome, PrefillFailed)
    assert outcome.kind is kind


async def test_a_proxy_that_stops_ends_the_legs_that_outlived_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "PREFILL_GRACE_S", 600.0)
    made, never = runner(), asyncio.Event()

    async def leg() -> PrefillDone:
        await never.wait()
        return PrefillDone()

    outliving = asyncio.create_task(leg())
    made.outlive(outliving)
    async with asyncio.timeout(20):
        await made.stop()

    assert outliving.cancelled()
    await until_true(lambda: not made._outliving)
