"""What a client gets for each way in which its request ends, and what follows a leg that broke, without nodes."""

import asyncio
from contextlib import nullcontext
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from baton.contracts.configuration.schema import BatonConfig
from baton.proxy.errors import (
    BadGatewayError,
    BodyTooLargeError,
    ClientGoneError,
    FailureKind,
    NoDescriptorsError,
    NoRoomError,
    Refusal,
    StreamBrokenError,
)
from baton.proxy.handler import request_handler
from baton.proxy.handler.request_handler import RequestHandler
from baton.proxy.http_server.stall_watchdog import STALLED
from baton.proxy.planning.outcome import PrefillDone
from baton.proxy.request.caller import CALLER
from baton.proxy.request.endpoints import CHAT, COMPLETIONS
from baton.proxy.request.parse import parse
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.resume.rules import CannotFollowError, NotResumableReason
from baton.proxy.tracing.traces import UNTRACED
from tests.support.asgi import body_of

BROKEN = StreamBrokenError(FailureKind.DISCONNECT, "it is gone")
DRAINED = StreamBrokenError(FailureKind.DRAINED, "it is drained")


async def test_a_stream_whose_last_event_has_passed_has_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken from its node in the same moment: no other node is asked, and the client's stream ends once."""
    monkeypatch.setattr(request_handler, "relay", AsyncMock(side_effect=DRAINED))
    monkeypatch.setattr(request_handler, "Stream", Mock(return_value=Mock(ended=True)))
    attempts, client = MagicMock(), Mock()
    attempts.request_attempts().watching.return_value = nullcontext()
    handler = RequestHandler(BatonConfig(), Mock(), attempts, Mock(metrics=None), Mock())

    await handler.serve(Mock(), Mock(), client)

    client.end.assert_called_once_with()
    attempts.request_attempts().answer.assert_called_once()


@pytest.mark.parametrize(
    ("ends", "status", "refused"),
    [
        (None, 0, None),
        (ClientGoneError(), 0, None),
        (NoRoomError(), 503, Refusal.DECODE_CAP),
        (NoDescriptorsError(), 503, Refusal.DESCRIPTORS),
        (BodyTooLargeError("it is long"), 413, None),
        (BadGatewayError("it is gone"), 502, None),
        (ZeroDivisionError(), 500, None),
        (asyncio.CancelledError(), 503, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
async def test_each_way_in_which_a_request_ends_has_its_answer(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ends: BaseException | None,
    status: int,
    refused: Refusal | None,
) -> None:
    """A connection that is closed with it has its body read; a cancelled task stays cancelled."""
    telemetry, admission, discard, sent = MagicMock(), MagicMock(), AsyncMock(), AsyncMock()
    record = telemetry.begin_record.return_value = RequestRecord("r1")
    telemetry.recording.return_value = nullcontext()
    admission.claims.claim.return_value = nullcontext()
    monkeypatch.setattr(request_handler, "writer_of", Mock(return_value=Mock(has_end=False)))
    monkeypatch.setattr(request_handler, "discard_body", discard)
    handler = RequestHandler(BatonConfig(), admission, Mock(), telemetry, Mock())
    monkeypatch.setattr(handler, "answer", AsyncMock(side_effect=ends))
    scope = {"path": CHAT, "headers": [(b"x-request-id", b"r1")], "http_version": "1.1"}

    with pytest.raises(asyncio.CancelledError) if isinstance(ends, asyncio.CancelledError) else nullcontext():
        await handler(scope, Mock(), sent)

    starts = [call.args[0] for call in sent.call_args_list if call.args[0]["type"] == "http.response.start"]
    assert [start["status"] for start in starts] == [status] * (status > 0)
    assert [call.args for call in telemetry.metrics.refused.call_args_list] == ([(refused,)] if refused else [])
    assert discard.await_count == isinstance(ends, NoDescriptorsError)
    assert record.left == isinstance(ends, ClientGoneError)
    assert [line.request_id for line in caplog.records if line.levelname == "ERROR"] == (  # type: ignore[attr-defined]
        ["r1"] if isinstance(ends, ZeroDivisionError) else []
    )
    telemetry.begin_record.assert_called_once_with(scope, CHAT, "r1")
    telemetry.recording.assert_called_once_with(CHAT, scope, record)
    assert not telemetry.metrics.client_dropped.called


async def test_a_request_is_served_in_its_turn_by_a_model_that_its_key_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known how long it waited to be let in."""
    body = b'{"model": "m", "messages": []}'
    turn, caller, admission, client = (
        AsyncMock(),
        Mock(),
        MagicMock(),
        Mock(record=Mock(request_id="r", trace=UNTRACED)),
    )
    admission.timeout_s.return_value = 60.0
    monkeypatch.setattr(request_handler, "LongBodies", Mock(return_value=Mock(wait=turn)))
    monkeypatch.setattr(request_handler, "writer_of", MagicMock())
    handler = RequestHandler(BatonConfig(), admission, Mock(), Mock(), Mock())
    monkeypatch.setattr(handler, "serve", AsyncMock())
    scope = {"path": CHAT, "headers": [], CALLER: caller}

    await handler.answer(scope, AsyncMock(return_value=body_of(body)[0]), client)

    turn.assert_awaited_once_with(len(body))
    caller.check_model.assert_called_once_with("m")
    client.record.let_in.assert_called_once()


async def test_a_client_that_did_not_read_is_counted_as_dropped() -> None:
    telemetry, record = Mock(), RequestRecord("r")
    handler = RequestHandler(BatonConfig(), Mock(), Mock(), telemetry, Mock())

    handler._gone({STALLED: True}, record)

    telemetry.metrics.client_dropped.assert_called_once_with()
    assert record.left


class Serving:
    """A request whose legs end as a test says; `why` keeps its stream from going on."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *ends: BaseException | None,
        why: NotResumableReason | None = None,
        may_go_on: bool = True,
        mends: bool = False,
    ) -> None:
        self.stream = Mock(ended=False, can_be_mended=mends, asked=Mock(start=((1, 2), (3,))))
        self.stream.go_on.side_effect = CannotFollowError(why) if why is not None else None
        self.request = parse(COMPLETIONS, "r", [], b'{"model": "m", "prompt": "x", "stream": true}')
        self.client = Mock(record=MagicMock(request_id="r"), claim=Mock(both_again=AsyncMock()))
        self.failover, self.telemetry, self.returns = MagicMock(), Mock(), Mock()
        self.attempts = self.failover.request_attempts.return_value
        self.attempts.watching.return_value = nullcontext()
        self.attempts.may_go_on.return_value = may_go_on
        self.relay = AsyncMock(side_effect=ends)
        monkeypatch.setattr(request_handler, "relay", self.relay)
        monkeypatch.setattr(request_handler, "Stream", Mock(return_value=self.stream))
        self.handler = RequestHandler(BatonConfig(), Mock(), self.failover, self.telemetry, self.returns)

    async def serve(self) -> None:
        await self.handler.serve(self.request, Mock(), self.client)

    @property
    def metrics(self) -> Any:
        return self.telemetry.metrics


async def test_a_stream_that_broke_goes_on_and_is_offered_for_a_return(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, and traced, with as many tokens as the next leg starts with."""
    here = Serving(monkeypatch, BROKEN, None)
    with caplog.at_level("INFO"):
        await here.serve()

    here.attempts.broke.assert_called_once_with(FailureKind.DISCONNECT)
    here.client.claim.both_again.assert_awaited_once_with()
    here.metrics.resumed.assert_called_once_with(FailureKind.DISCONNECT)
    here.client.record.trace.event.assert_called_once_with("resume", kind="disconnect", tokens="3")
    assert [(line.kind, line.tokens) for line in caplog.records] == [("disconnect", 3)]  # type: ignore[attr-defined]
    here.returns.offer.assert_called_once_with(here.stream, here.attempts.has_kv.return_value)
    assert not here.client.end.called


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_stream_is_watched(monkeypatch: pytest.MonkeyPatch, *, is_stream: bool) -> None:
    here = Serving(monkeypatch, None)
    opened = here.attempts.answer.return_value.__aenter__.return_value
    opened.answer.is_stream = is_stream

    await here.serve()

    assert here.attempts.watching.called == is_stream
    here.relay.assert_awaited_once_with(opened, here.client, here.stream)


async def test_an_answer_that_ended_with_the_prefill_nodes_token_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Serving(monkeypatch)
    here.attempts.answer.return_value.__aenter__.return_value = PrefillDone(is_whole=True)

    await here.serve()

    here.client.end.assert_called_once_with()
    assert not here.returns.offer.called


@pytest.mark.parametrize(
    ("broken", "settings", "reason"),
    [
        (BROKEN, {"why": NotResumableReason.BEAMS}, NotResumableReason.BEAMS),
        (BROKEN, {"may_go_on": False}, NotResumableReason.RETRY_DENIED),
        (DRAINED, {"may_go_on": False}, None),
        (CannotFollowError(NotResumableReason.DIFFERS), {}, NotResumableReason.DIFFERS),
        (CannotFollowError(NotResumableReason.DIFFERS), {"mends": True}, None),
    ],
)
async def test_a_stream_that_cannot_go_on_says_why(
    monkeypatch: pytest.MonkeyPatch, broken: Exception, settings: dict[str, Any], reason: NotResumableReason | None
) -> None:
    """A drain needs no retry; a stream that can be mended is."""
    here = Serving(monkeypatch, broken, None, **settings)

    with pytest.raises(BadGatewayError, match=reason.sentence) if reason is not None else nullcontext():
        await here.serve()

    assert [call.args for call in here.metrics.not_resumed.call_args_list] == ([(reason,)] if reason else [])
    assert here.metrics.resumed.called == here.returns.offer.called == (reason is None)


@pytest.mark.parametrize("has_broken", [False, True])
async def test_a_failure_to_answer_is_the_reason_why_a_stream_that_broke_ends(
    monkeypatch: pytest.MonkeyPatch, *, has_broken: bool
) -> None:
    """Of a request of which the client has nothing it is the answer."""
    gone = BadGatewayError("there is no other node")
    here = Serving(monkeypatch, *([BROKEN] * has_broken), gone)

    with pytest.raises(BadGatewayError) as caught:
        await here.serve()

    if has_broken:
        assert caught.value.message.startswith(BROKEN.message)
        here.metrics.not_resumed.assert_called_once_with(NotResumableReason.NO_NODE)
    else:
        assert caught.value is gone
        assert not here.metrics.not_resumed.called
