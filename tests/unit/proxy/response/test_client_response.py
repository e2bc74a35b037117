"""What is sent to a client whose answer fails."""

from unittest.mock import Mock

import pytest

from baton.proxy.errors import BadGatewayError
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

    assert writer.begin.call_count + writer.write.call_count == (2 if ends else 3)
    assert record.broken is not ends
    writer.end.assert_called_once_with()
