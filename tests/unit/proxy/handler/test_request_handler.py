"""What follows a leg that broke, without nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.contracts.configuration.schema import BatonConfig
from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.handler import request_handler
from baton.proxy.handler.request_handler import RequestHandler


async def test_a_stream_whose_last_event_has_passed_has_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken from its node in the same moment: no other node is asked, and the client's stream ends once."""
    ended: list[bool] = []
    client = SimpleNamespace(record=SimpleNamespace(record_plan=None), end=lambda: ended.append(True))

    @asynccontextmanager
    async def opened(*_: Any) -> AsyncIterator[object]:
        yield SimpleNamespace(answer=SimpleNamespace(is_stream=True))

    async def relay(*_: Any) -> None:
        raise StreamBrokenError(FailureKind.DRAINED, "it is drained")

    monkeypatch.setattr(request_handler, "relay", relay)
    monkeypatch.setattr(request_handler, "Stream", lambda *_, **__: SimpleNamespace(record=object(), ended=True))
    attempts = SimpleNamespace(
        request_attempts=lambda _: SimpleNamespace(answer=opened, watching=lambda *_: nullcontext())
    )
    handler = RequestHandler(
        BatonConfig(),
        cast("Any", None),
        cast("Any", attempts),
        cast("Any", SimpleNamespace(metrics=None)),
        cast("Any", None),
    )

    await handler.serve(cast("Any", None), cast("Any", None), cast("Any", client))

    assert ended == [True]
