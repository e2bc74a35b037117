"""What is sent to a client whose answer fails."""

from unittest.mock import AsyncMock, Mock

import pytest

from baton.contracts.http import PATH_HEADER, REASON_HEADER, TRANSFER_HEADER
from baton.proxy.errors import BadGatewayError
from baton.proxy.nodes.latency_histogram import LatencyHistogram
from baton.proxy.request.error_format import OPENAI
from baton.proxy.response import client_response
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.response.request_record import RequestRecord


@pytest.mark.parametrize("ends", [False, True])
async def test_a_stream_whose_last_bytes_are_sent_gets_no_error_behind_them(*, ends: bool) -> None:
    """A deadline that passes before its task has gone on: the answer is ended all the same."""
    writer, record = Mock(has_end=False), RequestRecord("r")
    client = ClientResponse(Mock(), writer, Mock(), record)
    client.begin_stream(200, [], b"data: 1\n\n")
    client.write(b"data: [DONE]\n\n", ends)
    writer.write.assert_called_once_with(b"data: [DONE]\n\n", ends=ends)
    writer.has_end = ends

    await client.fail(BadGatewayError("it is late"))

    writer.begin.assert_called_once_with(200, [(b"x-request-id", b"r")], b"data: 1\n\n", ends=False)
    assert writer.write.call_count == (1 if ends else 2)
    assert record.broken is not ends
    writer.end.assert_called_once_with()


async def test_gaps_between_chunks_are_counted_by_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """From what was sent last, the first bytes included; what is empty is not sent."""
    record, writer = RequestRecord("r", gaps=LatencyHistogram((1.0, 2.0))), Mock()
    monkeypatch.setattr(client_response, "perf_counter", iter([10.0, 10.5, 12.0, 15.0]).__next__)
    client = ClientResponse(Mock(), writer, Mock(), record)
    client.begin_stream(200, [], b"first")
    for chunk in (b"second", b"", b"third", b"fourth"):
        assert client.write(chunk)

    assert (list(record.gaps.counts), record.gaps.sum_s) == ([1, 1, 1], 5.0)
    assert (record.stream_began_s, record.sent_s) == (10.0, 15.0)
    assert writer.write.call_count == record.chunks == 3


@pytest.mark.parametrize(("last", "opening"), [(b"data: 1\n\n", b""), (b"data: 1", b"\n\n")])
@pytest.mark.parametrize("keeps_up", [True, False])
async def test_a_stream_that_breaks_ends_with_an_error_event(last: bytes, opening: bytes, keeps_up: bool) -> None:
    """An event that was cut is closed before it; it is counted, and waited for if the client is slow."""
    writer, record = Mock(has_end=False, wait_writable=AsyncMock()), RequestRecord("r")
    writer.write.return_value = keeps_up
    client = ClientResponse(Mock(), writer, Mock(), record)
    client.begin_stream(200, [], b"data: 0\n\n")
    client.write(last)
    error = BadGatewayError("it is gone")

    await client.fail(error)
    await client.fail(error)

    event = opening + OPENAI.event(error) + b"\n\n"
    assert [each.args[0] for each in writer.write.call_args_list] == [last, event]
    assert record.sent_bytes == len(b"data: 0\n\n") + len(last) + len(event)
    assert (record.chunks, record.broken) == (1, True)
    assert writer.wait_writable.await_count == (not keeps_up)


async def test_an_error_before_the_first_byte_is_an_answer_of_its_own() -> None:
    """Its head names the request, and how an answer would have been made."""
    sent, record = AsyncMock(), RequestRecord("r")
    record.path, record.reason, record.transfer_id = "local", "it\nis", "t"
    client = ClientResponse(sent, Mock(has_end=False), Mock(), record)
    error = BadGatewayError("it is gone")

    await client.fail(error)
    await client.fail(error)  # it has been answered

    head, body = (each.args[0] for each in sent.call_args_list)
    assert body["body"] == OPENAI.body(error)
    assert head["status"] == record.status == 502
    assert record.sent_bytes == len(body["body"])
    assert dict(head["headers"]) == {
        b"x-request-id": b"r",
        b"content-length": b"%d" % len(body["body"]),
        b"content-type": b"application/json",
        PATH_HEADER.encode(): b"local",
        REASON_HEADER.encode(): b"it is",
        TRANSFER_HEADER.encode(): b"t",
    }


@pytest.mark.parametrize(
    ("headers", "kind"),
    [(((b"retry-after", b"1"),), b"application/json"), (((b"content-type", b"text/plain"),), b"text/plain")],
)
async def test_an_error_says_what_its_body_is_unless_a_node_has_said_it(
    headers: tuple[tuple[bytes, bytes], ...], kind: bytes
) -> None:
    sent, error = AsyncMock(), BadGatewayError("it is gone")
    error.headers = headers
    await ClientResponse(sent, Mock(has_end=False), Mock(), RequestRecord("r")).fail(error)

    found = sent.call_args_list[0].args[0]["headers"]
    assert [value for name, value in found if name == b"content-type"] == [kind]
    assert set(headers) <= set(found)
