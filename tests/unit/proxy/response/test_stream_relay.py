"""What ends a stream that passes through something, without sockets."""

from collections.abc import Callable
from typing import Any
from unittest.mock import ANY, AsyncMock, Mock, call

import pytest

from baton.contracts.http import DISAGGREGATED, REASON_HEADER, RECOMPUTED
from baton.proxy.errors import FailureKind, StreamBrokenError, UpstreamError
from baton.proxy.planning.outcome import Opened
from baton.proxy.response.request_record import RequestRecord
from baton.proxy.response.stream_relay import END_OF_STREAM, relay


async def test_a_failure_within_the_first_bytes_is_the_one_that_is_told() -> None:
    """Not the end of the stream behind it, which would be taken for a lost connection."""
    told = StreamBrokenError(FailureKind.STATUS, "the engine failed")
    answer = Mock(is_stream=True, status=200, headers=[], pour=AsyncMock(), is_over=True)
    client = Mock(record=RequestRecord("r"))
    stream = Mock(take=lambda first: first[:6], broken=told, ended=False)

    with pytest.raises(StreamBrokenError) as caught:
        await relay(Opened(answer, b"tokens error"), client, stream)

    assert caught.value is told
    assert client.method_calls == [call.begin_stream(200, ANY, b"tokens", ends=False)]


async def test_what_is_no_stream_is_not_written_into_one() -> None:
    """The client has the prefill node's token; the answer goes on on another node."""
    client = Mock(record=RequestRecord("r"))
    client.record.status = 200

    with pytest.raises(StreamBrokenError, match="no stream") as caught:
        await relay(Opened(Mock(is_stream=False, status=200, headers=[]), b"{}"), client, Mock())

    assert caught.value.how is FailureKind.PROTOCOL
    assert client.mock_calls == []


async def test_a_client_that_is_slow_with_the_first_bytes_is_waited_for() -> None:
    """Nothing more is read of the node before."""
    client = Mock(record=RequestRecord("r"), wait_writable=AsyncMock())
    client.begin_stream.return_value = False
    answer = Mock(is_stream=True, status=200, headers=[], is_over=False)
    answer.pour = AsyncMock(side_effect=lambda *_: client.wait_writable.assert_awaited_once_with())

    await relay(Opened(answer, END_OF_STREAM), client, Mock(record=None, broken=None))

    assert answer.pour.await_count == 1
    client.end.assert_called_once_with()


async def passed(chunks: list[bytes], *, recomputed: bool = False, says: bytes = b"") -> RequestRecord:
    """Relay a stream that comes in these pieces, and passes through nothing; return what is known of it.

    The client gets its end with the last piece, and no piece before.
    """
    first, *rest = chunks
    ends: list[bool] = []

    async def pour(take: Callable[[bytes, bool], bool], _drained: Any) -> None:
        for at, chunk in enumerate(rest):
            take(chunk, at == len(rest) - 1)

    def write(_: bytes, is_end: bool) -> bool:
        ends.append(is_end)
        return True

    headers = [(REASON_HEADER.encode(), says)] if says else []
    record = RequestRecord("r")
    record.path = DISAGGREGATED
    opened = Mock(first=first, recomputed=recomputed)
    opened.answer = Mock(is_stream=True, status=200, headers=headers, pour=pour, is_over=not rest)
    try:
        await relay(opened, Mock(record=record, write=write), Mock(record=None, broken=None))
    except StreamBrokenError:
        assert not any(ends)
        raise
    assert ends == [False] * (len(rest) - 1) + [True] * bool(rest)
    return record


@pytest.mark.parametrize("line_end", [b"\n\n", b"\r\n\r\n", b"\n", b""])
async def test_the_last_event_is_known_however_it_is_cut(line_end: bytes) -> None:
    """In two pieces at every place, and byte by byte."""
    whole = b'data: {"a": 1}\n\n' + END_OF_STREAM + line_end
    for cut in range(1, len(whole)):
        await passed([whole[:cut], whole[cut:]])
    await passed([whole[at : at + 1] for at in range(len(whole))])


@pytest.mark.parametrize("missing", range(1, len(END_OF_STREAM) + 1))
async def test_a_stream_without_its_last_event_has_broken(missing: int) -> None:
    """However clean its end looks."""
    chunk = END_OF_STREAM[:-missing]
    with pytest.raises(StreamBrokenError) as caught:
        await passed([b'data: {"a": 1}\n\n', chunk or b"\n"])
    assert caught.value.how is FailureKind.DISCONNECT


@pytest.mark.parametrize("ends", [True, False])
async def test_a_connection_that_fails_breaks_only_a_stream_without_its_end(*, ends: bool) -> None:
    """How it failed is told of the stream."""
    broke = UpstreamError(FailureKind.TIMEOUT, "it is silent")
    answer = Mock(is_stream=True, status=200, headers=[], is_over=False, pour=AsyncMock(side_effect=broke))
    client = Mock(record=RequestRecord("r"))
    relaying = relay(Opened(answer, END_OF_STREAM if ends else b"data: 1"), client, Mock(record=None, broken=None))

    if ends:
        await relaying
    else:
        with pytest.raises(StreamBrokenError, match="it is silent") as caught:
            await relaying
        assert caught.value.how is FailureKind.TIMEOUT
    assert client.end.called is ends


@pytest.mark.parametrize(
    ("recomputed", "says", "path", "reason"),
    [
        (True, b"it says why", RECOMPUTED, "it says why"),
        (True, b"", RECOMPUTED, "the decode node computed the prompt itself"),
        (False, b"it says why", DISAGGREGATED, ""),
    ],
)
async def test_a_decode_node_that_computed_the_prompt_is_believed(
    says: bytes, path: str, reason: str, *, recomputed: bool
) -> None:
    """The client's header says what happened, not what was planned."""
    record = await passed([b"data: 1\n\n", END_OF_STREAM + b"\n\n"], recomputed=recomputed, says=says)

    assert (record.path, record.reason) == (path, reason)
