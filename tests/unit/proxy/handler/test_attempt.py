"""Which legs tell how long a node takes for a prompt."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.http import LOCAL
from baton.contracts.kv_transfer import Role, new_transfer_id
from baton.proxy.errors import FailureKind
from baton.proxy.handler.attempt import AttemptRunner, prefill_params
from baton.proxy.planning.outcome import DecodeFailed, Opened, PrefillDone
from baton.proxy.planning.placement import Estimate
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.planning.reasons import ON_PREFILL, ONE_TOKEN
from baton.proxy.request.endpoints import RESPONSES
from baton.proxy.request.parse import ClientRequest
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.resume.kept_tokens import KeptTokens
from baton.proxy.resume.stream import Stream
from tests.support.cluster import until_true
from tests.support.fake_vllm import SECRET
from tests.unit.proxy.members import node, request
from tests.unit.proxy.resume.test_stream import ROLE, event


def estimates(asked: ClientRequest) -> list[Estimate | None]:
    """Return what is expected of a prefill leg, and of the leg of a decode node alone."""
    parts = {name: Mock() for name in ("upstream", "members", "metrics", "cancels", "watch")}
    runner = AttemptRunner(BatonConfig(), SECRET, **parts)
    decode = node("decode")
    pair = DisaggregatedPlan(
        decode=decode, prefill=node("prefill"), rank=0, transfer_id=new_transfer_id(), new_bytes=100
    )
    alone = LocalPlan(decode=decode, path=LOCAL, reason="", own_bytes=70)
    return [
        runner.prefill_call(pair, asked, prefill_params(pair, asked, None)).estimate,
        runner.local_call(alone, asked).estimate,
    ]


def test_legs_that_compute_a_prompt_are_timed() -> None:
    assert [each and each[:2] for each in estimates(request())] == [(100, None), (70, None)]


@pytest.mark.parametrize(
    "asked",
    [replace(request(), endpoint=RESPONSES), replace(request(), start=((1, 2),))],
    ids=["a response's first events come before its first token", "what an answer begins with is known"],
)
def test_legs_whose_first_bytes_are_not_those_of_the_first_token_are_not(asked: ClientRequest) -> None:
    assert estimates(asked) == [None, None]


@pytest.mark.parametrize(
    ("role", "streamed", "during"),
    [("decode", True, [0, 1]), ("decode", False, [1, 1]), ("prefill", True, [0, 1]), ("prefill", False, [0, 1])],
)
async def test_a_prompt_is_computed_when_tokens_have_come(
    monkeypatch: pytest.MonkeyPatch, role: Role, streamed: bool, during: list[int]
) -> None:
    """A whole answer is a stream of a decode node from the beginning: its first bytes may be its last ones."""
    parts = {name: Mock() for name in ("upstream", "members", "metrics", "cancels", "watch")}
    runner, alone = AttemptRunner(BatonConfig(), SECRET, **parts), node(role)
    relay = Mock()
    relay.stream.kept = KeptTokens()
    streams, own, loads = [], [], []

    def look() -> None:
        streams.append(alone.open_streams)
        own.append(alone.own_prompt_bytes)
        loads.append(alone.load)

    async def fail(_call: object, _kept: object, on_tokens: Callable[[], None]) -> DecodeFailed:
        look()
        on_tokens()
        look()
        return DecodeFailed(FailureKind.DISCONNECT, "")

    asked = request({"stream": streamed})
    parts["watch"].watching.return_value = nullcontext()
    monkeypatch.setattr(runner, "decode", fail)
    async with runner.run(LocalPlan(decode=alone, path=LOCAL, reason="", own_bytes=1), asked, relay):
        pass

    assert (streams, own) == (during, [1, 0])
    assert role == "decode" or loads == [1, 0]
    assert (alone.open_streams, alone.own_prompt_bytes, alone.load) == (0, 0, 0.0)


@pytest.mark.parametrize(("reason", "during"), [(ON_PREFILL, (1, 0.0)), (ONE_TOKEN, (0, 1.0))])
async def test_a_whole_answer_of_a_prefill_node_that_names_no_tokens(
    monkeypatch: pytest.MonkeyPatch, reason: str, during: tuple[int, float]
) -> None:
    """It is a stream from the beginning; one token is made at the end of its prompt."""
    parts = {name: Mock() for name in ("upstream", "members", "metrics", "cancels", "watch")}
    runner, prefill = AttemptRunner(BatonConfig(), SECRET, **parts), node("prefill")
    relay = Mock()
    relay.stream.kept = None
    seen = []

    async def fail(*_: object) -> DecodeFailed:
        seen.append((prefill.open_streams, prefill.load))
        return DecodeFailed(FailureKind.DISCONNECT, "")

    parts["watch"].watching.return_value = nullcontext()
    monkeypatch.setattr(runner, "decode", fail)
    async with runner.run(LocalPlan(decode=prefill, path=LOCAL, reason=reason, own_bytes=1), request(), relay):
        pass

    assert seen == [during]
    assert (prefill.open_streams, prefill.load) == (0, 0.0)


@pytest.mark.parametrize(("prompt", "own"), [("x", 0), (["x", "y"], 2)], ids=["one prompt", "several"])
async def test_of_several_prompts_the_first_tokens_say_nothing_of_the_others(
    monkeypatch: pytest.MonkeyPatch, prompt: str | list[str], own: int
) -> None:
    parts = {name: Mock() for name in ("upstream", "members", "metrics", "cancels", "watch")}
    runner, decode = AttemptRunner(BatonConfig(), SECRET, **parts), node("decode")
    seen = []

    async def fail(_call: object, _kept: object, on_tokens: Callable[[], None]) -> DecodeFailed:
        on_tokens()
        seen.append(decode.own_prompt_bytes)
        return DecodeFailed(FailureKind.DISCONNECT, "")

    parts["watch"].watching.return_value = nullcontext()
    monkeypatch.setattr(runner, "decode", fail)
    plan = LocalPlan(decode=decode, path=LOCAL, reason="", own_bytes=2)
    async with runner.run(plan, request({"prompt": prompt}), Mock()):
        pass

    assert (seen, decode.own_prompt_bytes) == ([own], 0)


@pytest.mark.parametrize(("is_computed", "waiting"), [(False, 100), (True, 0)])
async def test_on_the_prefill_node_of_a_pair_the_new_part_of_a_prompt_waits_until_its_first_token(
    monkeypatch: pytest.MonkeyPatch, is_computed: bool, waiting: int
) -> None:
    """Its leg lasts longer: until the KV is sent, or for a second after the answer's end. A leg that is cut by then has taught what a prompt takes."""
    parts = {name: Mock() for name in ("upstream", "members", "metrics", "cancels", "watch")}
    runner, prefill, decode = AttemptRunner(BatonConfig(), SECRET, **parts), node("prefill"), node("decode")
    asked = request({"prompt": "x" * 900, "stream": True})
    plan = DisaggregatedPlan(decode=decode, prefill=prefill, rank=0, transfer_id=new_transfer_id(), new_bytes=100)
    seen = []
    parts["upstream"].send.return_value.at_s = 1.0

    async def prefill_leg(_call: object, _sent: object, relay: Mock, **_: object) -> PrefillDone:
        if is_computed:
            relay.on_first_event(1.5)
        await asyncio.sleep(60)
        raise AssertionError

    async def fail(*_: object) -> DecodeFailed:
        await asyncio.sleep(0.01)  # the prefill leg begins
        seen.append(prefill.load)
        return DecodeFailed(FailureKind.DISCONNECT, "")

    monkeypatch.setattr(runner, "prefill", prefill_leg)
    attempt = runner.run(plan, asked, Mock(stream=Mock(choices=1)))
    monkeypatch.setattr(attempt, "_decode", fail)
    async with attempt:
        pass
    await until_true(lambda: not prefill.requests)

    assert seen == [waiting]
    assert (prefill.load, prefill.prompt_bytes) == (0.0, 0)
    assert prefill.prefill_time.limit_s(100) == (0.5 if is_computed else 0.0)


@pytest.mark.parametrize(
    ("data", "is_first"),
    [(b": keep-alive\n\n", False), (event(1), True), (ROLE, True), (b'data: {"error": {"code": 500}}\n\n', False)],
    ids=["a comment", "a token", "a role", "an error"],
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
    parts = {name: Mock() for name in ("upstream", "members", "metrics", "cancels", "watch")}
    runner, prefill, decode = AttemptRunner(BatonConfig(), SECRET, **parts), node("prefill"), node("decode")
    plan = DisaggregatedPlan(decode=decode, prefill=prefill, rank=0, transfer_id=new_transfer_id())
    relay, answer = Mock(is_whole=True, began_s=1.5, stream=Mock(choices=1)), Mock()

    async def opened(*_: object) -> Opened:
        return Opened(answer, b"data: the token, and the end")

    async def prefill_leg(*_: object, **__: object) -> PrefillDone:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(runner, "prefill", prefill_leg)
    attempt = runner.run(plan, request({"stream": True}), relay)
    monkeypatch.setattr(attempt, "_decode", opened)
    async with attempt as outcome:
        assert outcome == PrefillDone(1.5, is_whole=True)

    assert answer.close.called
    assert (decode.open_streams, decode.load) == (0, 0.0)
