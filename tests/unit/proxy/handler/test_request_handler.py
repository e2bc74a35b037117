"""What follows a leg that broke, without nodes."""

from contextlib import nullcontext
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from baton.contracts.configuration.schema import BatonConfig
from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.handler import request_handler
from baton.proxy.handler.request_handler import RequestHandler


async def test_a_stream_whose_last_event_has_passed_has_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken from its node in the same moment: no other node is asked, and the client's stream ends once."""
    drained = StreamBrokenError(FailureKind.DRAINED, "it is drained")
    monkeypatch.setattr(request_handler, "relay", AsyncMock(side_effect=drained))
    monkeypatch.setattr(request_handler, "Stream", Mock(return_value=Mock(ended=True)))
    attempts, client = MagicMock(), Mock()
    attempts.request_attempts().watching.return_value = nullcontext()
    handler = RequestHandler(BatonConfig(), Mock(), attempts, Mock(metrics=None), Mock())

    await handler.serve(Mock(), Mock(), client)

    client.end.assert_called_once_with()
    attempts.request_attempts().answer.assert_called_once()
