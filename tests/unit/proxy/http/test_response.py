"""An answer as its reader sees it, from a connection that the test moves."""

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.response import HIGH_WATER_BYTES, UpstreamResponse


@pytest.mark.parametrize("error", [None, UpstreamError(FailureKind.DISCONNECT, "it is gone")])
async def test_what_had_come_is_the_last_if_the_end_was_a_good_one(error: UpstreamError | None) -> None:
    answer, taken = UpstreamResponse(Mock(), 200, []), list[tuple[bytes, bool]]()
    answer.arrived(b"all", is_last=error is None)
    answer.end(error)

    def sink(data: bytes, is_last: bool) -> bool:
        taken.append((data, is_last))
        return True

    if error is None:
        await answer.pour(sink, AsyncMock())
    else:
        with pytest.raises(UpstreamError):
            await answer.pour(sink, AsyncMock())

    assert taken == [(b"all", error is None)]
    assert answer.is_over == (error is None)


async def test_a_node_is_read_no_further_from_the_first_byte_beyond_the_mark() -> None:
    source = Mock()
    answer = UpstreamResponse(source, 200, [])
    answer.arrived(bytes(HIGH_WATER_BYTES), is_last=False)
    paused_before = source.pause.called
    for _ in range(2):
        answer.arrived(b"1", is_last=False)

    paused = source.pause.call_count
    await answer.read_some()
    answer.arrived(bytes(HIGH_WATER_BYTES), is_last=False)

    assert (paused_before, paused) == (False, 1)
    assert [name for name, *_ in source.method_calls] == ["pause", "resume"]


async def test_an_answer_that_is_closed_twice_closes_its_connection_once() -> None:
    source = Mock()
    answer = UpstreamResponse(source, 200, [])
    answer.close()
    answer.close()

    source.abandon.assert_called_once_with()
    assert await answer.read_some() == b""


async def test_a_sink_whose_caller_has_left_is_given_nothing_more() -> None:
    answer, sink = UpstreamResponse(Mock(), 200, []), Mock()
    pouring = asyncio.create_task(answer.pour(sink, AsyncMock()))
    await asyncio.sleep(0)
    pouring.cancel()
    await asyncio.gather(pouring, return_exceptions=True)
    answer.arrived(b"late", is_last=False)

    assert not sink.called
    assert await answer.read_some() == b"late"


async def test_a_reader_gets_bytes_when_they_come_and_events_when_they_are_whole() -> None:
    answer = UpstreamResponse(Mock(), 200, [])
    reading = asyncio.create_task(answer.read_event())
    for part in (b"data: 1", b"\n", b"\ndata: 2"):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answer.arrived(part, is_last=False)

    async with asyncio.timeout(10):
        assert await reading == b"data: 1\n\ndata: 2"
    answer.arrived(b"data: 3", is_last=True)
    answer.end()
    with pytest.raises(UpstreamError) as caught:
        await answer.read_event()
    assert caught.value.kind is FailureKind.DISCONNECT


@pytest.mark.parametrize(
    ("kind", "is_stream"), [(b"Text/Event-Stream ; charset=utf-8", True), (b"application/json", False), (b"", False)]
)
def test_a_stream_is_known_by_its_content_type(kind: bytes, is_stream: bool) -> None:
    assert UpstreamResponse(Mock(), 200, [(b"content-type", kind)]).is_stream is is_stream
