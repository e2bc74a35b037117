"""What a leg's answer means."""

import asyncio
import json
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from baton.contracts.http import ANSWER_COMMENT, TOKENS_COMMENT, TOKENS_TYPE
from baton.proxy.errors import FailureKind
from baton.proxy.handler.legs import open_decode, run_prefill
from baton.proxy.http.response import UpstreamResponse
from baton.proxy.planning.outcome import (
    DecodeFailed,
    DecodeRefused,
    Opened,
    PrefillDone,
    PrefillFailed,
    PrefillRefused,
)
from baton.proxy.request.endpoints import CHAT
from baton.proxy.request.parse import parse
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.resume.kept_tokens import KeptTokens
from baton.proxy.resume.stream import Stream


@pytest.mark.parametrize("names_tokens", [True, False])
async def test_the_first_tokens_of_a_whole_answer_are_told_of_before_it_is_there(*, names_tokens: bool) -> None:
    """They say that its prompt is computed. A short answer comes without."""
    order: list[str] = []
    lines = [TOKENS_COMMENT + b"0 1,2\n", ANSWER_COMMENT + b'{"status": 200, "headers": []}\n']

    async def read_some() -> bytes:
        order.append("read")
        return lines.pop(0)

    answer = Mock(status=200, is_stream=False, read_some=read_some, read_all=AsyncMock(return_value=b"{}"))
    answer.headers = [(b"content-type", TOKENS_TYPE.encode() if names_tokens else b"application/json")]
    sent = Mock(answer=AsyncMock(return_value=answer))

    outcome = await open_decode(sent, KeptTokens(), lambda: order.append("tokens"))

    assert isinstance(outcome, Opened)
    assert order == (["tokens", "read", "read"] if names_tokens else [])


async def test_an_answer_behind_its_tokens_has_the_status_that_stands_there() -> None:
    """The tokens' own is 200 in any case."""
    said = TOKENS_COMMENT + b"0 1\n" + ANSWER_COMMENT + b'{"status": 429, "headers": []}\n' + ERROR

    outcome = await open_decode(answered(200, said, TOKENS_TYPE), KeptTokens())

    assert isinstance(outcome, DecodeFailed)
    assert outcome.kind is BUSY


async def test_a_further_node_names_all_tokens_of_a_whole_answer_again() -> None:
    kept, named = KeptTokens(), [TOKENS_COMMENT + b"0 %d\n" % token for token in (1, 2, 3)]
    kept.take(named[0] + named[1])

    await open_decode(answered(200, b"".join(named), TOKENS_TYPE), kept)

    assert kept.start() == ((1, 2, 3),)


def answered(status: int, body: bytes, kind: str = "application/json") -> Any:
    """A request that its node has answered with this, and no more."""
    answer = UpstreamResponse(Mock(), status, [(b"content-type", kind.encode()), (b"retry-after", b"3")])
    if body:
        answer.arrived(body, is_last=True)
    answer.end()
    return Mock(answer=AsyncMock(return_value=answer))


BUSY, STATUS, NOT_THEIRS = FailureKind.BUSY, FailureKind.STATUS, FailureKind.REFUSED
ERROR = b'{"error": {"message": "no"}}'


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, None), (400, NOT_THEIRS), (499, NOT_THEIRS), (501, NOT_THEIRS), (408, BUSY), (429, BUSY), (500, STATUS)],
)
async def test_a_status_says_whose_fault_it_is(status: int, kind: FailureKind | None) -> None:
    """In both roles alike."""
    prefill = await run_prefill(answered(status, ERROR), timeout_s=60.0)
    decode = await open_decode(answered(status, ERROR))

    assert getattr(prefill, "kind", None) is kind
    assert isinstance(prefill, PrefillDone) == (status == 200)
    assert isinstance(prefill, PrefillRefused) == isinstance(decode, DecodeRefused) == (kind is NOT_THEIRS)
    assert isinstance(decode, Opened) == (status == 200)
    if kind in {BUSY, STATUS}:
        assert isinstance(decode, DecodeFailed)
        assert decode.kind is kind


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_only_an_answer_that_is_relayed_stays_open(status: int) -> None:
    answer = Mock(status=status, is_stream=False, headers=[], read_all=AsyncMock(return_value=b"{}"))
    sent = Mock(answer=AsyncMock(return_value=answer))

    await open_decode(sent)
    assert answer.close.called == (status != 200)
    answer.close.reset_mock()
    await run_prefill(sent, timeout_s=60.0)
    assert answer.close.called


@pytest.mark.parametrize(("body", "is_kept"), [(ERROR, True), (b"<html>", False), (b'{"error": "no"}', False)])
async def test_a_nodes_error_keeps_its_body_in_one_shape_alone(body: bytes, is_kept: bool) -> None:
    """The type of another one would be wrong for what stands in its place."""
    outcome = await run_prefill(answered(400, body, "text/x"), timeout_s=60.0)

    assert isinstance(outcome, PrefillRefused)
    assert outcome.answered.status == 400
    assert list(outcome.answered.headers) == [(b"content-type", b"text/x")] * is_kept + [(b"retry-after", b"3")]


@pytest.mark.parametrize(
    ("first", "kind", "status"),
    [
        (b'data: {"error": {"message": "no", "code": 500}}\n\n', STATUS, 500),
        (b'data: {"error": {"message": "no", "code": 599}}\n\n', STATUS, 599),
        (b'data: {"error": {"message": "no", "code": 400}}\n\n', None, 0),
        (b'data: {"error": {"message": "no", "code": 600}}\n\n', None, 0),
        (b'data: {"error": {"message": "no", "code": "no"}}\n\n', None, 0),
        (b'data: {"error": "no"}\n\n', None, 0),
        (b'data: {"text": "a"}\n\n', None, 0),
        (b"", FailureKind.EMPTY, 0),
    ],
)
async def test_a_stream_that_begins_with_a_nodes_own_error_has_not_begun(
    first: bytes, kind: FailureKind | None, status: int
) -> None:
    """Its error is the client's answer, if no other node has a better one; an error of the client's own is a stream."""
    outcome = await open_decode(answered(200, first, "text/event-stream"))

    if kind is None:
        assert isinstance(outcome, Opened)
        assert outcome.first == first
        return
    assert isinstance(outcome, DecodeFailed)
    assert outcome.kind is kind
    if status:
        assert outcome.answered is not None
        assert (outcome.answered.status, outcome.answered.body()) == (status, first[6:-2])
        assert outcome.answered.headers == ((b"content-type", b"application/json"),)
        assert outcome.error() is outcome.answered


async def test_a_prefill_node_that_does_not_answer_in_time() -> None:
    outcome = await run_prefill(Mock(answer=asyncio.Event().wait), timeout_s=0.01)

    assert isinstance(outcome, PrefillFailed)
    assert outcome.kind is FailureKind.TIMEOUT


async def test_a_decode_node_whose_answer_ends_behind_its_tokens() -> None:
    outcome = await open_decode(answered(200, TOKENS_COMMENT + b"0 1\n", TOKENS_TYPE), KeptTokens())

    assert isinstance(outcome, DecodeFailed)
    assert outcome.kind is FailureKind.DISCONNECT


def chunk(finish: str | None) -> bytes:
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "a", "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("body", "kind", "may_be_pushed", "is_whole"),
    [
        (b"", FailureKind.DISCONNECT, False, False),
        (chunk(None), FailureKind.DISCONNECT, True, False),
        (b'data: {"error": {"code": 500}}\n\n', FailureKind.STATUS, False, False),
        (chunk(None) + chunk("abort"), None, False, False),
        (chunk(None) + chunk("stop") + b"data: [DONE]\n\n", None, False, True),
    ],
    ids=["nothing", "cut", "error", "part", "whole"],
)
async def test_how_a_prefill_nodes_part_of_a_stream_ends(
    body: bytes, kind: FailureKind | None, may_be_pushed: bool, is_whole: bool
) -> None:
    stream = Stream(parse(CHAT, "r", [], b'{"model": "m", "messages": [], "stream": true}'), resumes=True)
    stream.begin_prefill()
    relay = FirstTokenRelay(Mock(record=Mock(status=0)), stream)

    outcome = await run_prefill(answered(200, body, "text/event-stream"), timeout_s=60.0, relay=relay)

    assert getattr(outcome, "kind", None) is kind
    assert getattr(outcome, "may_be_pushed", False) == may_be_pushed
    assert getattr(outcome, "is_whole", False) == is_whole
    if isinstance(outcome, PrefillDone):
        assert outcome.answered_s == relay.began_s > 0


async def test_a_prefill_nodes_stream_that_cannot_be_read_is_its_failure() -> None:
    relay = Mock(take=Mock(side_effect=KeyError("choices")), client=Mock(wait_writable=AsyncMock()))

    outcome = await run_prefill(answered(200, chunk(None), "text/event-stream"), timeout_s=60.0, relay=relay)

    assert outcome == PrefillFailed(FailureKind.PROTOCOL, "its stream is not one of vLLM's")
