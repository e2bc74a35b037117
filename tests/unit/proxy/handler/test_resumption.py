"""What follows a leg that broke, without nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.handler import resumption
from baton.proxy.handler.resumption import answer


async def test_a_stream_whose_last_event_has_passed_has_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken from its node in the same moment: no other node is asked, and the client's stream ends once."""
    ended: list[bool] = []
    client = SimpleNamespace(record=SimpleNamespace(record_plan=None), end=lambda: ended.append(True))

    @asynccontextmanager
    async def opened(*_: Any) -> AsyncIterator[object]:
        yield object()

    async def relay(*_: Any) -> None:
        raise StreamBrokenError(FailureKind.DRAINED, "it is drained")

    monkeypatch.setattr(resumption, "relay", relay)
    stream = SimpleNamespace(record=object(), ended=True)
    attempts = SimpleNamespace(answer=opened, watching=opened)

    await answer(cast("Any", stream), cast("Any", attempts), cast("Any", client), cast("Any", None))

    assert ended == [True]
