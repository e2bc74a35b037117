"""One connection to a node, on a transport that the test moves."""

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from baton.proxy.http.connection import MAX_HEAD_BYTES, Connection, UnusedError
from tests.support.fake_transport import Transport

Ended = Callable[[Connection], None]
BEGUN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no"


def _nothing(_: Connection) -> None:
    """No pool is told."""


def connected(done: Ended = _nothing, lost: Ended = _nothing) -> tuple[Connection, Transport]:
    connection, transport = Connection(done, lost), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


@pytest.mark.parametrize("come", [b"", BEGUN[:20], BEGUN])
async def test_a_request_that_is_forgotten_before_its_answers_end_closes_the_connection(come: bytes) -> None:
    """The end of the connection, which comes later, is then no error that is never looked at."""
    connection, transport = connected()
    head = connection.send(b"request")
    connection.data_received(come)
    connection.forget(head)
    was_open = connection.is_open
    connection.connection_lost(None)

    assert transport.aborted
    assert not was_open
    assert head.cancelled() == (come != BEGUN)


async def test_a_request_that_has_failed_is_forgotten_without_an_error() -> None:
    connection, _ = connected()
    head = connection.send(b"request")
    connection.data_received(BEGUN[:20])
    connection.connection_lost(None)
    connection.forget(head)

    with pytest.raises(UnusedError):
        await head


async def test_nothing_is_asked_of_a_transport_that_is_closing() -> None:
    """Uvloop's would raise."""
    connection, transport = connected()
    transport.pause_reading = transport.resume_reading = asked = Mock()  # type: ignore[method-assign]
    connection.pause()
    connection.resume()
    transport.close()
    connection.pause()
    connection.resume()

    assert asked.call_count == 2


async def test_a_connection_that_is_lost_is_told_and_takes_no_request() -> None:
    lost = Mock()
    connection, transport = connected(lost=lost)
    connection.connection_lost(None)

    lost.assert_called_once_with(connection)
    assert not connection.is_open
    with pytest.raises(UnusedError):
        await connection.send(b"request")
    assert transport.written == b""


async def test_what_was_not_asked_for_closes_the_connection() -> None:
    connection, transport = connected()
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")

    assert transport.aborted


async def test_heads_of_interim_answers_do_not_add_up_to_one_that_is_too_long() -> None:
    connection, _ = connected()
    head = connection.send(b"request")
    for _ in range(3):
        connection.data_received(b"HTTP/1.1 103 Early Hints\r\nlink: " + b"x" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n")
    connection.data_received(BEGUN)

    assert (await head).headers == [(b"content-length", b"2")]


async def test_an_answer_that_comes_as_its_request_is_cancelled_closes_the_connection() -> None:
    """`forget` does it when the caller wakes, and no other request may be under way there by then."""
    done = Mock()
    connection, transport = connected(done)
    head = connection.send(b"request")
    transport.unread_bytes = 0
    head.cancel()
    connection.data_received(BEGUN + b"k")

    assert not connection.is_open
    assert transport.aborted
    assert not done.called


@pytest.mark.parametrize("excess", [0, 1])
async def test_a_head_may_be_so_long_and_no_longer(excess: int) -> None:
    connection, transport = connected()
    head = connection.send(b"request")
    connection.data_received(b"HTTP/1.1 200 OK\r\nname: " + b"x" * (MAX_HEAD_BYTES - 4 + excess) + b"\r\n\r\n")

    assert transport.aborted == bool(excess)
    assert (head.exception() is None) == (not excess)
