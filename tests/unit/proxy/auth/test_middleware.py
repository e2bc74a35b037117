"""What the guard before a route does with a request; how it is with sockets: `tests/integration/proxy/test_api_keys.py`."""

from contextlib import nullcontext
from unittest.mock import ANY, AsyncMock, MagicMock, Mock

import pytest
from prometheus_client import CollectorRegistry

from baton.proxy.auth import middleware
from baton.proxy.auth.counts import counts_of
from baton.proxy.auth.keyring import Keyring
from baton.proxy.auth.middleware import AccessMetrics, AuthMiddleware, ReadingAuthMiddleware


@pytest.mark.parametrize("kind", [AuthMiddleware, ReadingAuthMiddleware])
@pytest.mark.parametrize(
    ("headers", "is_read"), [([], False), ([(b"connection", b"close")], True), ([(b"expect", b"100-continue")], False)]
)
async def test_the_body_of_a_refused_request_is_read_only_where_the_answer_would_be_lost(
    monkeypatch: pytest.MonkeyPatch, kind: type[AuthMiddleware], headers: list[tuple[bytes, bytes]], *, is_read: bool
) -> None:
    """Before the answer: behind it the connection is closed, and what is unread then would reset it."""
    order, app, telemetry = MagicMock(), AsyncMock(), MagicMock()
    order.send, order.discard = AsyncMock(), AsyncMock()
    telemetry.recording.return_value = nullcontext()
    monkeypatch.setattr(middleware, "writer_of", Mock())
    monkeypatch.setattr(middleware, "discard_body", order.discard)
    keyring, counted = Keyring(counts_of(None)), AccessMetrics(CollectorRegistry())
    guard = kind(app, lambda _: "/route", keyring, counted, telemetry=telemetry, claims=Mock())

    scope = {"headers": [(b"x-request-id", b"r1"), *headers], "path": "/route", "http_version": "1.1"}

    await guard(scope, Mock(), order.send)

    assert [name for name, *_ in order.method_calls] == ["discard"] * is_read + ["send", "send"]
    head = order.send.call_args_list[0].args[0]
    assert (head["status"], dict(head["headers"])[b"x-request-id"]) == (401, b"r1")
    telemetry.recording.assert_called_once_with("/route", scope, ANY)
    app.assert_not_awaited()
