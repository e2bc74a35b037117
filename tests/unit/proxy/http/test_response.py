"""An answer that is handed on after it has ended."""

from unittest.mock import AsyncMock, Mock

import pytest

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.response import UpstreamResponse


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
