"""What the legs of an attempt tell their nodes, and what is learned from how they end."""

import asyncio
import json
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from msgspec.structs import replace

from baton.contracts.http import LOCAL, TOKEN_IDS_HEADER
from baton.contracts.kv_transfer import FIELD, Grid, Grids, TransferParams, new_transfer_id, verify
from baton.proxy.errors import FailureKind
from baton.proxy.handler import attempt as attempt_module
from baton.proxy.handler.attempt import CUT, prefill_params
from baton.proxy.handler.legs import LegRequest
from baton.proxy.http_server.connection_budget import ConnectionBudget
from baton.proxy.nodes.cached_cost import PromptParts
from baton.proxy.planning.outcome import Opened, PrefillDone, PrefillFailed
from baton.proxy.planning.placement import Estimate
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.request.endpoints import COMPLETIONS
from tests.support.cluster import until_true
from tests.support.fake_vllm import SECRET
from tests.unit.proxy.handler.attempts import SeenTrace, runner
from tests.unit.proxy.handler.test_legs import answered
from tests.unit.proxy.members import node, request
from tests.unit.proxy.resume.test_stream import event

TOKEN = event(1, names=False)


def told(call: LegRequest) -> tuple[list[bytes], TransferParams | None, dict[str, Any]]:
    """Return the lines of a leg's head, its verified parameters, and the rest of its body."""
    url, endpoint, head, body = call.request
    assert (url, endpoint) == (call.node.url, COMPLETIONS)
    fields = json.loads(body)
    params = fields.pop(FIELD, None)
    assert head.startswith(call.asked.forwarded)
    lines = head.removeprefix(call.asked.forwarded).split(b"\r\n")[:-1]
    return lines, verify(params, SECRET) if params is not None else None, fields


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("relays", [True, False])
def test_what_the_legs_of_a_pair_are_told(*, relays: bool, ranks: int) -> None:
    """Two legs that a client sees have its request's name; a prefill node's ranks are told apart where it has some."""
    addresses = [f"tcp://p:{at}" for at in range(ranks)]
    prefill = node("prefill", "http://p", first_tokens="3-alike", control_addresses=addresses, tensor_parallel_size=2)
    decode = node("decode", "http://d", 1, first_tokens="3-alike", pipeline_parallel_size=3)
    plan = DisaggregatedPlan(decode=decode, prefill=prefill, rank=ranks - 1, transfer_id=new_transfer_id())
    asked = replace(request({"max_tokens": 9, "stream": True}), names_tokens="1", trace=SeenTrace())
    relay = Mock(stream=Mock(choices=2)) if relays else None
    params = prefill_params(plan, asked, relay)
    made = runner()

    lines, seen, fields = told(made.prefill_call(plan, asked, params))
    decode_lines, decode_seen, decode_fields = told(made.decode_call(plan, asked, params))

    own = [b"x-request-id: id", TOKEN_IDS_HEADER.encode() + b": 1"] if relays else [b"x-request-id: id-prefill"]
    rank = [b"x-data-parallel-rank: 1"] if ranks > 1 else []
    assert lines == [*own, *rank, b"traceparent: http://p"]
    assert decode_lines == [b"x-request-id: id", TOKEN_IDS_HEADER.encode() + b": 1", b"traceparent: http://d"]
    grids = Grids(Grid(tp=2), Grid(pp=3))
    shared: dict[str, Any] = {"transfer_id": plan.transfer_id, "choices": relays, "grids": grids, "first_token": True}
    assert seen == TransferParams(role="prefill", peer="", relays=relays, **shared)
    assert decode_seen == TransferParams(role="decode", peer=addresses[-1], **shared)
    assert (fields["max_tokens"], fields["stream"]) == ((9, True) if relays else (1, False))
    assert decode_fields == {"model": "m", "prompt": "x", "max_tokens": 9, "stream": True}


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("is_ahead", [True, False])
@pytest.mark.parametrize("starts", [True, False])
def test_what_a_decode_node_is_told_of_an_answer_that_goes_on(*, moves: bool, is_ahead: bool, starts: bool) -> None:
    """Its tokens, if it can start with them; one whose KV is sent ahead is asked for one more, which no client waits for."""
    prefill, decode = node("prefill"), node("decode", first_tokens="3-alike" if starts else "")
    plan = DisaggregatedPlan(decode=decode, prefill=prefill, moves=moves, rank=0, transfer_id=new_transfer_id())
    asked = replace(request({"max_tokens": 9}), start=((1, 2, 3),))
    params = prefill_params(plan, asked, None)

    call = runner().decode_call(plan, asked, params, is_ahead=is_ahead)

    (name, *_), seen, fields = told(call)
    assert seen is not None
    assert params.start == (asked.start if moves else ())
    assert (seen.start, seen.start_sent) == (asked.start if moves or starts else (), moves)
    assert (seen.kv_only, call.is_optional, seen.first_token) == (is_ahead, is_ahead, False)
    assert (name, fields["max_tokens"]) == ((b"x-request-id: id-ahead", 4) if is_ahead else (b"x-request-id: id", 9))


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("start", [((1, 2),), ()])
def test_what_a_node_alone_is_told(start: Any, *, starts: bool) -> None:
    """Nothing of a transfer, but the tokens that it starts with."""
    alone = node("decode", first_tokens="3-alike" if starts else "")
    plan = LocalPlan(decode=alone, path=LOCAL, reason="", work_bytes=70)

    _, seen, fields = told(runner().local_call(plan, replace(request(), start=start)))

    assert (seen and (seen.role, seen.peer, seen.start)) == (("decode", "", start) if starts and start else None)
    assert fields == {"model": "m", "prompt": "x"}


def test_what_is_known_of_a_prompts_parts_is_part_of_its_estimate() -> None:
    alone = node("decode")
    plan = LocalPlan(decode=alone, path=LOCAL, reason="", work_bytes=70, cached_bytes=2)

    call = runner().local_call(plan, request({"prompt": "x" * 8}))

    assert call.estimate is not None
    assert call.estimate.unqueued == PromptParts(8, 2)


@pytest.mark.parametrize(
    ("body", "estimate", "first_bytes", "predicted"),
    [
        (TOKEN, Estimate(100, 0.5), 2.0, 4.0),
        (TOKEN, Estimate(100, None), 2.0, 0.0),
        (TOKEN, None, 2.0, 0.0),
        (b": keep-alive\n\n", Estimate(100, 0.5), 2.0, 0.0),
        (b"{}", Estimate(100, 0.5), 0.0, 0.0),
    ],
    ids=["a stream", "not predicted", "not estimated", "a comment", "whole"],
)
async def test_the_first_bytes_of_a_decode_nodes_stream_are_timed(
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    estimate: Estimate | None,
    first_bytes: float,
    predicted: float,
) -> None:
    """They say how long the prompt took, if they are its first token."""
    made, alone, trace = runner(), node("decode"), SeenTrace()
    plan = LocalPlan(decode=alone, path=LOCAL, reason="", work_bytes=70)
    call = replace(made.local_call(plan, replace(request(), trace=trace)), estimate=estimate)
    sent = answered(200, body, "application/json" if body == b"{}" else "text/event-stream")
    sent.at_s = 1.0
    monkeypatch.setattr(made.upstream, "send", Mock(return_value=sent))
    monkeypatch.setattr(attempt_module, "perf_counter", lambda: 3.0)

    outcome = await made.decode(call)

    assert isinstance(outcome, Opened)
    cast("Any", made.upstream).send.assert_called_once_with(*call.request)
    assert alone.times.first_bytes.sum_s == first_bytes
    assert alone.times.prediction.sum_s == predicted
    assert (trace.events, trace.ends) == ([("decode", "first bytes")] if first_bytes else [], {})
    cast("Any", made.members).succeeded.assert_called_once_with(alone)


@pytest.mark.parametrize(
    ("status", "end", "reported"),
    [(400, "refused", None), (500, "status", FailureKind.STATUS), (429, "busy", FailureKind.BUSY)],
)
async def test_how_a_decode_leg_ends_without_an_answer(status: int, end: str, reported: FailureKind | None) -> None:
    made, alone, trace = runner(), node("decode"), SeenTrace()
    call = made.local_call(LocalPlan(decode=alone, path=LOCAL, reason=""), replace(request(), trace=trace))
    cast("Any", made.upstream).send.return_value = answered(status, b"{}")

    await made.decode(call)

    members, metrics = cast("Any", made.members), cast("Any", made)._metrics
    assert trace.ends == {"decode": end}
    assert [each.args for each in members.report.call_args_list] == [(alone, reported)] * (reported is not None)
    assert [each.args for each in metrics.leg_failed.call_args_list] == [("decode", reported)] * (reported is not None)
    assert members.succeeded.called == (reported is None)


async def test_a_node_that_could_not_fetch_what_the_client_names_has_not_failed() -> None:
    made, alone = runner(), node("decode")
    part = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    asked = request({"messages": [{"role": "user", "content": [part]}]})
    cast("Any", made.upstream).send.return_value = answered(500, b"{}")

    await made.decode(made.local_call(LocalPlan(decode=alone, path=LOCAL, reason=""), asked))

    cast("Any", made.members).report.assert_called_once_with(alone, FailureKind.UNFETCHED)


@pytest.mark.parametrize("relay", [None, Mock()])
async def test_the_whole_answer_of_a_prefill_node_that_is_not_relayed_tells_how_long_its_prompt_took(
    monkeypatch: pytest.MonkeyPatch, relay: Any
) -> None:
    made, prefill, trace = runner(), node("prefill"), SeenTrace()
    plan = DisaggregatedPlan(decode=node("decode"), prefill=prefill, rank=0, transfer_id=new_transfer_id())
    asked = replace(request(), trace=trace)
    call = replace(made.prefill_call(plan, asked, prefill_params(plan, asked, None)), estimate=Estimate(100, 0.5))
    monkeypatch.setattr(attempt_module, "run_prefill", AsyncMock(return_value=PrefillDone(3.0)))

    assert await made.prefill(call, Mock(at_s=1.0), relay) == PrefillDone(3.0)

    assert (prefill.times.answered.sum_s, prefill.times.prediction.sum_s) == (2.0, 4.0 if relay is None else 0.0)
    assert trace.ends == {"prefill": ""}


async def test_the_leg_of_a_prefill_node_that_is_cut_says_so() -> None:
    made, trace = runner(), SeenTrace()
    plan = DisaggregatedPlan(decode=node("decode"), prefill=node("prefill"), rank=0, transfer_id=new_transfer_id())
    asked = replace(request(), trace=trace)
    call = made.prefill_call(plan, asked, prefill_params(plan, asked, None))

    with pytest.raises(asyncio.CancelledError):
        await made.prefill(call, Mock(answer=AsyncMock(side_effect=asyncio.CancelledError)), None)

    assert trace.ends == {"prefill": CUT}


async def test_a_prefill_leg_that_ends_in_the_turn_in_which_its_stream_does_gives_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its callback is on its way when the attempt is over."""
    made, budget = runner(), ConnectionBudget(lambda: 9, lambda: None)
    plan = DisaggregatedPlan(decode=node("decode"), prefill=node("prefill"), rank=0, transfer_id=new_transfer_id())
    may_end, claim = asyncio.Event(), budget.claim()

    async def prefill_leg(*_: object, **__: object) -> Any:
        await may_end.wait()
        return PrefillDone()

    monkeypatch.setattr(made, "prefill", prefill_leg)
    monkeypatch.setattr(made.upstream, "send", Mock(return_value=Mock(at_s=1.0)))
    with claim:
        relay = Mock(is_whole=False, began_s=0.0, stream=Mock(choices=1), client=Mock(claim=claim))
        attempt = made.run(plan, replace(request({"stream": True}), start=((1,),)), relay)

        async def decode(_: object) -> Opened:
            assert attempt._prefill is not None
            attempt._prefill.add_done_callback(lambda _: attempt._shut(answered=True))  # called first
            return Opened(Mock(headers=[]), b"data: a\n\n")

        monkeypatch.setattr(attempt, "_decode", decode)
        async with attempt:
            assert attempt._prefill is not None
            may_end.set()
            await until_true(attempt._prefill.done)
            for _ in range(5):  # its callbacks are called
                await asyncio.sleep(0)
            assert attempt._is_shut
            assert budget.connections == 2


NONE_COMES = PrefillFailed(FailureKind.DISCONNECT, "")


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(
    ("start", "ends", "cancels"),
    [(((1,),), NONE_COMES, 1), (((1,),), PrefillDone(), 0), ((), NONE_COMES, 0), (((1,),), None, 0)],
)
async def test_a_decode_node_that_started_with_tokens_is_told_that_no_kv_comes(
    monkeypatch: pytest.MonkeyPatch, start: Any, ends: Any, cancels: int, is_whole: bool
) -> None:
    """Its stream, or the tokens of a whole answer, have begun before the KV could come; one that starts with none has waited for it. Not when its answer has ended."""
    made, may_end = runner(), asyncio.Event()
    plan = DisaggregatedPlan(decode=node("decode"), prefill=node("prefill"), rank=0, transfer_id=new_transfer_id())

    async def prefill_leg(*_: object, **__: object) -> Any:
        await may_end.wait()
        return ends

    monkeypatch.setattr(made, "prefill", prefill_leg)
    monkeypatch.setattr(made.upstream, "send", Mock(return_value=Mock(at_s=1.0)))
    relay = Mock(is_whole=False, began_s=0.0, stream=Mock(choices=1))
    attempt = made.run(plan, replace(request({"stream": True}), start=start), relay)
    opened = Opened(Mock(headers=[]), b"data: a\n\n")

    async def end_prefill() -> None:
        if ends is not None:
            may_end.set()
            await until_true(lambda: not plan.prefill.requests)

    async def decode(_: object) -> Opened:
        if is_whole:
            attempt._begin_tokens()
            await end_prefill()
        return opened

    monkeypatch.setattr(attempt, "_decode", decode)
    async with attempt as outcome:
        assert outcome is opened
        if not is_whole:
            assert not relay.client.claim.streams.called, "the prefill leg is open"
            await end_prefill()
            assert relay.client.claim.streams.called == (ends is not None)
    await made.stop()
    await until_true(lambda: not plan.prefill.requests)

    told_of = [call.args for call in cast("Any", made.cancels).add.call_args_list]
    assert told_of == [(plan.prefill, plan.transfer_id)] * cancels
