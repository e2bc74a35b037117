"""What ends a stream that passes through something, without sockets."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.planning.outcome import Opened
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.response.stream_relay import relay
from baton.proxy.resume.stream import Stream


async def test_a_failure_within_the_first_bytes_is_the_one_that_is_told() -> None:
    """Not the end of the stream behind it, which would be taken for a lost connection."""
    told = StreamBrokenError(FailureKind.STATUS, "the engine failed")
    sent: list[bytes] = []

    async def start(_status: int, _head: Any, first: bytes, *, streams: bool, ends: bool) -> None:
        assert streams
        assert not ends
        sent.append(first)

    async def pour(*_: Any) -> None:
        """The stream ends."""

    answer = SimpleNamespace(is_stream=True, status=200, headers=[], pour=pour, is_over=True)
    client = SimpleNamespace(status=0, path="", start=start, write=sent.append, drained=None)
    stream = SimpleNamespace(passing=SimpleNamespace(take=lambda first: first[:6]), broken=told, ended=False)

    with pytest.raises(StreamBrokenError) as caught:
        await relay(
            Opened(cast("Any", answer), b"tokens error"), cast("ClientResponse", client), cast("Stream", stream)
        )

    assert caught.value is told
    assert sent == [b"tokens"]
