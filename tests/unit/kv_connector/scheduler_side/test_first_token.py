"""Which requests a prefill node samples the first token for, and which of its tokens a decode node starts with."""

from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.handoff.metadata import DecodeReport, Ending
from baton.kv_connector.layout.groups import STATE, Group
from baton.kv_connector.protocol.messages import SampledToken
from baton.kv_connector.scheduler_side import client_tokens
from baton.kv_connector.scheduler_side.client_tokens import tokens_of_client
from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from baton.kv_connector.scheduler_side.first_token import may_start, wanted_logprobs
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, SECRET, FakePool, MakeDecode, request, step_output

VOCABULARY = 100
TOKEN = SampledToken(id=7)
ENDING = Ending(at_s=0.0, reserve_sent_s=0.0, committed=True, timings_s={}, pushing_s=0.0)
FIVE = SampledToken(id=7, logprob_ids=(7, 1, 2, 3, 4, 5), logprobs=(-1.0,) * 6, rank=2)


def sampling(**more: Any) -> Any:
    """VLLM's parameters, as far as they are looked at."""
    return SimpleNamespace(
        **{"prompt_logprobs": None, "num_logprobs": None, "logprob_token_ids": None, "extra_args": None, **more}
    )


@pytest.fixture
def side(make_decode: MakeDecode) -> DecodeScheduler:
    """A decode node whose scheduler starts requests with tokens."""
    return make_decode(sampling="d", vocab_size=VOCABULARY)


def received(side: DecodeScheduler, req: Any, token: SampledToken | None) -> None:
    """The request's KV comes, with a token; the commit of another rank, a step later, has none."""
    side.add_request(req)
    assert side.match(req, 0) == (req.num_prompt_tokens, True)
    side.allocated(req, [[*FakePool(9).blocks[1:4]]], req.num_prompt_tokens)
    tokens_said = {req.request_id: token} if token else {}
    side.update(DecodeReport(endings={req.request_id: ENDING}, first_tokens=tokens_said), set())
    side.update(DecodeReport(endings={req.request_id: ENDING}), {req.request_id})


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, 0),
        ({"num_logprobs": 0}, 1),
        ({"num_logprobs": 5}, 6),
        ({"num_logprobs": -1}, None),
        ({"num_logprobs": 5_000}, None),
        ({"prompt_logprobs": 1}, None),
        ({"logprob_token_ids": [3]}, None),
    ],
)
def test_logprobs_that_go_with_a_commit(asked: dict[str, Any], wanted: int | None) -> None:
    """Those of the whole vocabulary do not, nor those of tokens that the client names."""
    assert wanted_logprobs(SimpleNamespace(sampling_params=sampling(**asked))) == wanted


@pytest.mark.parametrize(
    ("token", "logprobs", "may"),
    [
        (TOKEN, None, True),
        (FIVE, 5, True),
        (FIVE, 4, False),
        (TOKEN, 0, False),
        (FIVE, None, False),
        (SampledToken(id=VOCABULARY), None, False),
        (SampledToken(id=7, logprob_ids=(7, VOCABULARY), logprobs=(-1.0, -1.0)), 1, False),
        (SampledToken(id=7, logprob_ids=(7, 8), logprobs=(-1.0,)), 1, False),
    ],
)
def test_what_a_peer_says_is_looked_at(token: SampledToken, logprobs: int | None, may: bool) -> None:
    """A token that the model does not have would end the engine, and so would missing logprobs."""
    asked = SimpleNamespace(sampling_params=sampling(num_logprobs=logprobs))

    assert may_start(asked, token, VOCABULARY) is may


def test_a_request_starts_with_the_token_that_came_with_its_kv(side: DecodeScheduler) -> None:
    """It is counted, so that one sees how many do."""
    received(side, req := request("decode", 40, first_token=True), TOKEN)

    start = req.__dict__["baton_start"]
    assert start.tokens == [TOKEN]
    assert side.snapshot()["totals"]["started"] == 0
    start.totals["started"] += 1  # as the scheduler does, once it has found room
    assert side.snapshot()["totals"]["started"] == 1


@pytest.mark.parametrize(
    ("asked", "token"),
    [
        ({"first_token": False}, TOKEN),
        ({"first_token": True}, None),
        ({"first_token": True}, SampledToken(id=VOCABULARY)),
        ({"first_token": True, "start": ((), (5,)), "choice": 0}, TOKEN),  # another answer's tokens are known
    ],
)
def test_others_sample_it_themselves(side: DecodeScheduler, asked: dict[str, Any], token: SampledToken | None) -> None:
    received(side, req := request("decode", 40, **asked), token)

    assert "baton_start" not in req.__dict__
    assert side.snapshot()["totals"]["started"] == 0


@pytest.mark.parametrize(("first_token", "tokens"), [(True, 1), (False, 0)])
def test_a_prompt_of_which_only_the_last_token_is_missing(
    side: DecodeScheduler, first_token: bool, tokens: int
) -> None:
    """Its KV is computed here, unless the first token is to come with it."""
    side.add_request(req := request("decode", 33, first_token=first_token))

    assert side.match(req, 32) == (tokens, first_token)


@pytest.mark.parametrize(
    ("sampling", "first_token", "logprobs"), [("d", True, 0), ("d", False, None), ("", True, None)]
)
def test_the_prefill_worker_is_told_whose_token_to_take(sampling: str, first_token: bool, logprobs: int | None) -> None:
    """With how many logprobs."""
    side = PrefillScheduler(SECRET, BLOCK_TOKENS, sampling=sampling)
    side.add_request(request("prefill", 40, first_token=first_token))

    (started,) = side.take_step(step_output(new=[("r1", [1, 2, 3], 0, 40)])).started

    assert started.logprobs == logprobs


@pytest.mark.parametrize(
    ("asked", "width"), [({}, 0), ({"num_logprobs": 2}, 3), ({"num_logprobs": 0}, 1), ({"num_logprobs": -1}, 1)]
)
def test_tokens_that_the_client_has_come_with_logprobs_if_any_are_asked_for(asked: dict[str, Any], width: int) -> None:
    """VLLM's server reads them with each token; their values are not looked at."""
    request = SimpleNamespace(sampling_params=sampling(**asked))

    assert tokens_of_client(request, (5, 9)) == [
        SampledToken(id=one, logprob_ids=(one,) * width, logprobs=(0.0,) * width, rank=1) for one in (5, 9)
    ]


@pytest.mark.parametrize("peer", ["", None])
def test_a_request_starts_with_the_tokens_that_its_client_has(
    side: DecodeScheduler, monkeypatch: pytest.MonkeyPatch, peer: str | None
) -> None:
    """With a transfer, and without one, of which the node is told before the head of the response; not with the token that P has sampled."""
    told: list[Any] = []
    monkeypatch.setattr(side._outcomes, "send", lambda *line: told.append(line))
    req = request("decode", 40, first_token=True, start=((5, 9),), peer=peer)
    side.add_request(req)
    assert told == ([("a" * 32, "local", "")] if peer == "" else [])
    assert len(side.snapshot()["transfers"]) == (peer is None)

    assert [token.id for token in req.__dict__["baton_start_at_once"].tokens] == [5, 9]
    assert side.match(req, 0) == ((40, True) if peer is None else (0, False))
    assert side.match(req, 39) == (0, False)
    assert side.snapshot()["refused"] == {}
    side.finish_request(req)


@pytest.mark.parametrize(
    ("start", "more"),
    [
        ((VOCABULARY,), {}),
        ((5,), {"prompt_embeds": "given"}),
        ((5,), {"sampling_params": None}),
        ((5,), {"sampling_params": sampling(prompt_logprobs=1)}),
    ],
)
def test_a_request_that_cannot_start_with_them_is_refused(
    side: DecodeScheduler, start: tuple[int, ...], more: dict[str, Any]
) -> None:
    """It would repeat what the client has."""
    side.add_request(req := request("decode", 40, start=(start,), **more))

    assert req.__dict__["baton_start_at_once"].tokens == ()
    assert side.snapshot()["refused"] == {"start": 1}
    assert side.snapshot()["transfers"] == []


def test_tokens_are_said_once(side: DecodeScheduler) -> None:
    """Not by several answers of which the server has not said which they are, nor again when the first one has ended."""
    side.add_request(first := request("decode", 40, start=((5,),), peer=""))
    side.finish_request(first)
    side.add_request(other := request("decode", 40, start=((5,),), peer="", request_id="r2"))

    assert other.__dict__["baton_start_at_once"].tokens == ()
    assert side.snapshot()["refused"] == {"start": 1}


def test_what_is_remembered_of_started_requests_is_bounded(
    side: DecodeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_tokens, "MAX_STARTED", 2)
    for choice in range(4):
        side.add_request(request("decode", 40, start=((5,),) * 4, choice=choice, peer="", request_id=f"r{choice}"))

    assert [*side._client_tokens._started] == [("a" * 32, 2), ("a" * 32, 3)]


@pytest.mark.parametrize(("peer", "several"), [("", False), (None, False), ("", True)])
def test_each_of_several_answers_starts_with_its_own(side: DecodeScheduler, peer: str | None, several: bool) -> None:
    """One that has none is like any other: to one prompt they share what the first one receives."""
    start = ((5, 9), (), (6,))
    more: dict[str, Any] = {"start": start, "peer": peer, "several": several, "first_token": True}
    requests = [request("decode", 40, choice=choice, request_id=f"r{choice}", **more) for choice in (0, 1, 2, 3, -1)]
    for req in requests:
        side.add_request(req)

    started = [req.__dict__.get("baton_start_at_once") for req in requests]
    assert [[token.id for token in one.tokens] if one else [] for one in started] == [[5, 9], [], [6], [], []]
    assert side.snapshot()["refused"] == {}
    assert side.snapshot()["totals"]["shared"] == (4 if peer is None else 0)


def test_an_engine_with_another_scheduler_starts_with_no_tokens(make_decode: MakeDecode) -> None:
    """It asks a prefill node for none, and refuses a client's, as the node's HTTP side does before."""
    side = make_decode()
    received(side, req := request("decode", 40, first_token=True), TOKEN)
    side.add_request(request("decode", 40, start=((5,),), peer="", request_id="r2", transfer_id="b" * 32))

    assert "baton_start" not in req.__dict__
    assert side.snapshot()["first_tokens"] == ""
    assert side.snapshot()["refused"] == {"start": 1}


def test_an_engine_with_recurrent_layers_starts_with_no_tokens_and_sends_none(make_decode: MakeDecode) -> None:
    for groups, said in (((Group(), STATE), ""), ((Group(), Group(9)), "d")):
        made = (
            make_decode(sampling="d", groups=groups),
            PrefillScheduler(SECRET, BLOCK_TOKENS, sampling="d", groups=groups),
        )
        assert [side.snapshot()["first_tokens"] for side in made] == [said, said]


@pytest.mark.parametrize(
    ("sampling", "relays", "more", "max_tokens"),
    [
        ("d", True, {}, 1),
        ("d", True, {"max_tokens": 2}, 1),
        ("d", False, {}, 20),
        ("d", True, {"prompt_embeds": "given"}, 1),
        ("", True, {}, 20),
    ],
)
def test_a_leg_that_is_the_beginning_of_a_stream_ends_early(
    sampling: str, relays: bool, more: dict[str, Any], max_tokens: int
) -> None:
    """Whatever its prompt is; an engine without our scheduler counts that it cannot."""
    side = PrefillScheduler(SECRET, BLOCK_TOKENS, sampling=sampling)
    side.bind_pool(FakePool(33))

    side.add_request(req := request("prefill", 40, relays=relays, **more))

    assert req.max_tokens == max_tokens
    assert side.snapshot()["refused"] == ({} if sampling or not relays else {"relay": 1})
