"""Which legs tell how long a node takes for a prompt."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from msgspec.structs import replace

from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.http import LOCAL, PATH_HEADER, RECOMPUTED
from baton.contracts.kv_transfer import Role, new_transfer_id
from baton.proxy.errors import FailureKind, StreamBrokenError, UpstreamError
from baton.proxy.handler import attempt as attempt_module
from baton.proxy.handler.attempt import CUT, AttemptRunner, prefill_params
from baton.proxy.planning.outcome import DecodeFailed, Opened, PrefillDone, PrefillFailed
from baton.proxy.planning.placement import Estimate
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.planning.reasons import ON_PREFILL, ONE_TOKEN
from baton.proxy.request.endpoints import COMPLETIONS, RESPONSES
from baton.proxy.request.parse import ClientRequest
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.resume.kept_tokens import KeptTokens
from baton.proxy.resume.stream import Stream
from baton.proxy.tracing.traces import Leg, Trace
from tests.support.cluster import until_true
from tests.support.fake_vllm import SECRET
from tests.unit.proxy.handler.test_legs import answered
from tests.unit.proxy.members import node, request
from tests.unit.proxy.resume.test_stream import ROLE, event

STREAM = "text/event-stream"


def runner() -> AttemptRunner:
    parts = {name: Mock() for name in ("upstream", "members", "metrics", "cancels", "watch")}
    parts["watch"].watching.return_value = nullcontext()
    return AttemptRunner(BatonConfig(), SECRET, **parts)


class SeenTrace(Trace):
    """Keeps how each leg ended first, by its node's role, and what happened on it."""

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}
        self.events: list[tuple[str, str]] = []

    def leg(self, role: str, url: str) -> Leg:
        seen = self

        class SeenLeg(Leg):
            line = f"traceparent: {url}\r\n".encode()

            def event(self, name: str) -> None:
                seen.events.append((role, name))

            def end(self, problem: str = "") -> None:
                seen.ends.setdefault(role, str(problem))

        return SeenLeg()


def estimates(asked: ClientRequest) -> list[Estimate | None]:
    """Return what is expected of a prefill leg, and of the leg of a decode node alone."""
    made, decode = runner(), node("decode")
    pair = DisaggregatedPlan(
        decode=decode, prefill=node("prefill"), rank=0, transfer_id=new_transfer_id(), work_bytes=100
    )
    alone = LocalPlan(decode=decode, path=LOCAL, reason="", work_bytes=70)
    return [
        made.prefill_call(pair, asked, prefill_params(pair, asked, None)).estimate,
        made.local_call(alone, asked).estimate,
    ]


def test_legs_that_compute_a_prompt_are_timed() -> None:
    assert [each and each[:2] for each in estimates(request())] == [(100, None), (70, None)]


@pytest.mark.parametrize("asked", [request(), replace(request(), endpoint=RESPONSES)], ids=["timed", "not timed"])
def test_each_prompt_counts_as_its_nodes(monkeypatch: pytest.MonkeyPatch, asked: ClientRequest) -> None:
    """In bytes and in seconds, as of the last ten; one of which nothing is known to be computed does not."""
    made, alone = runner(), node("decode")
    alone.clock = lambda: 0.0
    monkeypatch.setattr(alone, "prefill_time", Mock(predict_s=lambda size, _: size / 100))
    for work_bytes in (0, 70):
        made.local_call(LocalPlan(decode=alone, path=LOCAL, reason="", work_bytes=work_bytes), asked)

    assert (alone.prompt_rate.bytes_per_s(0.0), alone.prompt_rate.prompts_per_s(0.0)) == (7.0, 0.1)
    assert alone.prompt_share.at(0.0) == pytest.approx(0.07)


@pytest.mark.parametrize(
    "asked",
    [replace(request(), endpoint=RESPONSES), replace(request(), start=((1, 2),))],
    ids=["a response's first events come before its first token", "what an answer begins with is known"],
)
def test_legs_whose_first_bytes_are_not_those_of_the_first_token_are_not(asked: ClientRequest) -> None:
    assert estimates(asked) == [None, None]


async def run_alone(
    plan: LocalPlan, asked: ClientRequest, *, kept: KeptTokens | None = None
) -> tuple[list[int], list[int], list[float]]:
    """Run a leg that fails in the end; return streams, bytes of own prompts and load of its node, before and after tokens came."""
    made, alone = runner(), plan.decode
    seen: list[tuple[int, int, float]] = []

    async def fail(_call: object, _kept: object, on_tokens: Callable[[], None]) -> DecodeFailed:
        for tell in (on_tokens, lambda: None):
            seen.append((alone.open_streams, alone.own_prompt_bytes, alone.load))
            tell()
        return DecodeFailed(FailureKind.DISCONNECT, "")

    made.decode = fail  # type: ignore[assignment,method-assign]
    async with made.run(plan, asked, Mock(stream=Mock(kept=kept))):
        pass
    assert (alone.open_streams, alone.own_prompt_bytes, alone.load) == (0, 0, 0.0)
    return tuple(map(list, zip(*seen, strict=True)))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("role", "streamed", "during"),
    [("decode", True, [0, 1]), ("decode", False, [1, 1]), ("prefill", True, [0, 1]), ("prefill", False, [0, 1])],
)
async def test_a_prompt_is_computed_when_tokens_have_come(role: Role, streamed: bool, during: list[int]) -> None:
    """A whole answer is a stream of a decode node from the beginning: its first bytes may be its last ones."""
    plan = LocalPlan(decode=node(role), path=LOCAL, reason="", work_bytes=1)

    streams, own, loads = await run_alone(plan, request({"stream": streamed}), kept=KeptTokens())

    assert (streams, own) == (during, [1, 0])
    assert role == "decode" or loads == [1, 0]


async def test_an_answer_that_is_open_is_a_stream_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prompt is computed; how long it took is noted, and its leg ends with it."""
    made, alone, trace = runner(), node("decode"), SeenTrace()
    opened = Opened(Mock(headers=[]), b"data: a\n\n")
    monkeypatch.setattr(made, "decode", AsyncMock(return_value=opened))
    monkeypatch.setattr(attempt_module, "perf_counter", lambda: 10.0)
    plan = LocalPlan(decode=alone, path=LOCAL, reason="", work_bytes=7)

    relay, asked = Mock(stream=Mock(kept=None), asked_at=0.0), replace(request({"stream": True}), trace=trace)
    async with made.run(plan, asked, relay) as outcome:
        assert outcome is opened
        assert relay.asked_at > 0
        assert (alone.open_streams, alone.own_prompt_bytes, alone.requests) == (1, 0, 1)

    assert (alone.open_streams, alone.requests, alone.load) == (0, 0, 0.0)
    assert (sum(alone.times.ended.counts), alone.times.ended.sum_s) == (1, 0.0)
    assert trace.ends == {"decode": ""}
    assert cast("Any", opened.answer).close.called
    assert not cast("Any", made.cancels).add.called


@pytest.mark.parametrize(("has_begun", "end"), [(True, "stalled"), (False, CUT)])
async def test_a_stream_that_breaks_is_its_nodes_failure(
    monkeypatch: pytest.MonkeyPatch, has_begun: bool, end: str
) -> None:
    """Before its first bytes it is an attempt that failed."""
    made, alone, trace = runner(), node("decode"), SeenTrace()
    broken = StreamBrokenError(FailureKind.STALLED, "it is silent")
    opened = Opened(Mock(headers=[]), b"data: a\n\n")
    monkeypatch.setattr(made, "decode", AsyncMock(return_value=opened))
    if not has_begun:
        monkeypatch.setattr(made.watch, "watching", Mock(side_effect=broken))
    plan = LocalPlan(decode=alone, path=LOCAL, reason="")

    with pytest.raises(StreamBrokenError) if has_begun else nullcontext():
        async with made.run(plan, replace(request({"stream": True}), trace=trace), Mock()) as outcome:
            if has_begun:
                raise broken

    if not has_begun:
        assert outcome == DecodeFailed(FailureKind.STALLED, broken.message)
    cast("Any", made.members).report.assert_called_once_with(alone, FailureKind.STALLED)
    assert trace.ends == {"decode": end}
    assert sum(alone.times.ended.counts) == 0


@pytest.mark.parametrize(("reason", "streams", "load"), [(ON_PREFILL, 1, 0.0), (ONE_TOKEN, 0, 1.0)])
async def test_a_whole_answer_of_a_prefill_node_that_names_no_tokens(reason: str, streams: int, load: float) -> None:
    """It is a stream from the beginning; one token is made at the end of its prompt."""
    plan = LocalPlan(decode=node("prefill"), path=LOCAL, reason=reason, work_bytes=1)

    seen_streams, _, loads = await run_alone(plan, request())

    assert (seen_streams[0], loads[0]) == (streams, load)


@pytest.mark.parametrize(("prompt", "own"), [("x", 0), (["x", "y"], 2)], ids=["one prompt", "several"])
async def test_of_several_prompts_the_first_tokens_say_nothing_of_the_others(prompt: str | list[str], own: int) -> None:
    plan = LocalPlan(decode=node("decode"), path=LOCAL, reason="", work_bytes=2)

    assert (await run_alone(plan, request({"prompt": prompt}), kept=KeptTokens()))[1] == [2, own]


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
