"""Which legs tell how long a node takes for a prompt, and what a node has while it answers alone."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from msgspec.structs import replace

from baton.contracts.http import LOCAL
from baton.contracts.kv_transfer import Role, new_transfer_id
from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.handler import attempt as attempt_module
from baton.proxy.handler.attempt import CUT, prefill_params
from baton.proxy.planning.outcome import DecodeFailed, Opened
from baton.proxy.planning.placement import Estimate
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.planning.reasons import ON_PREFILL, ONE_TOKEN
from baton.proxy.request.endpoints import RESPONSES
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume.kept_tokens import KeptTokens
from tests.unit.proxy.handler.attempts import SeenTrace, runner
from tests.unit.proxy.members import node, request


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
