"""What is sent to a client whose answer fails."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.proxy.errors import BadGatewayError
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.response.request_record import RequestRecord


class FakeWriter:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.has_end = False
        self.ends = 0

    def begin(self, _status: int, _headers: Any, first: bytes, *, ends: bool) -> bool:
        return self.write(first, ends=ends)

    def write(self, chunk: bytes, *, ends: bool = False) -> bool:
        self.sent.append(chunk)
        self.has_end = ends
        return True

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("ends", [False, True])
async def test_a_stream_whose_last_bytes_are_sent_gets_no_error_behind_them(*, ends: bool) -> None:
    """A deadline that passes before its task has gone on: the answer is ended all the same."""
    writer, record = FakeWriter(), RequestRecord("r")
    client = ClientResponse(cast("Any", None), cast("Any", writer), cast("Any", SimpleNamespace()), record)
    client.begin_stream(200, [], b"data: 1\n\n")
    client.write(b"data: [DONE]\n\n", ends)

    await client.fail(BadGatewayError("it is late"))

    assert len(writer.sent) == (2 if ends else 3)
    assert record.broken is not ends
    assert writer.ends == 1
