"""What is written to a node, and what becomes of its connection; no connection is made."""

import asyncio
import errno
from time import perf_counter
from unittest.mock import AsyncMock

import pytest

from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.address import address_of
from baton.proxy.http.connection import Connection
from baton.proxy.http.upstream import Upstream
from tests.support.fake_transport import Transport


@pytest.fixture
async def kept(monkeypatch: pytest.MonkeyPatch) -> tuple[Upstream, Connection, Transport]:
    """A client that has one connection, which is idle."""
    upstream, transport = Upstream(connect_timeout_s=10), Transport()
    connection = Connection(lambda _: None, lambda _: None)
    connection.connection_made(transport)  # type: ignore[arg-type]
    monkeypatch.setattr(upstream.pool, "take", lambda _: connection)
    return upstream, connection, transport


async def test_a_request_is_written_at_once(kept: tuple[Upstream, Connection, Transport]) -> None:
    upstream, _, transport = kept
    began_s = perf_counter()
    pending = upstream.send("http://a:1/p", "/v1/x", b"x-own: 1\r\n", b"{}")

    assert transport.written == b"POST /p/v1/x HTTP/1.1\r\nhost: a:1\r\nx-own: 1\r\ncontent-length: 2\r\n\r\n{}"
    assert began_s <= pending.at_s <= perf_counter()
    pending.close()
    assert transport.aborted


async def test_a_request_for_which_no_connection_was_kept_is_given_up_like_any_other() -> None:
    Upstream(connect_timeout_s=10).send("http://a:1", "/v1/x", b"", b"{}").close()


async def test_a_small_answer_that_is_not_read_to_its_end_closes_its_connection(
    kept: tuple[Upstream, Connection, Transport],
) -> None:
    upstream, connection, transport = kept
    asyncio.get_running_loop().call_soon(connection.data_received, b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{")
    async with upstream.get("http://a:1", "/health", b"x-own: 1\r\n", timeout_s=10) as answer:
        status = answer.status

    assert status == 503
    assert transport.written == b"GET /health HTTP/1.1\r\nhost: a:1\r\nx-own: 1\r\n\r\n"
    assert transport.aborted


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EMFILE, "too many"), FailureKind.OWN),
        (OSError(errno.ECONNREFUSED, "refused"), FailureKind.CONNECT),
        (TimeoutError(), FailureKind.TIMEOUT),
    ],
)
async def test_a_connection_that_cannot_be_made_says_whose_fault_it_is(
    monkeypatch: pytest.MonkeyPatch, error: OSError, kind: FailureKind
) -> None:
    upstream = Upstream(connect_timeout_s=10)
    monkeypatch.setattr(upstream.pool, "connect", AsyncMock(side_effect=error))

    with pytest.raises(UpstreamError) as caught:
        await upstream.connect(address_of("http://a:1"))
    assert caught.value.kind is kind
