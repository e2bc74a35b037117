"""Which answers say how they were made."""

from typing import Any, cast
from unittest.mock import Mock

import pytest

from baton.contracts.http import DISAGGREGATED, PATH_HEADER, REASON_HEADER, RECOMPUTED
from baton.node.connector.connector_channel import Outcome
from baton.node.http.held_response import name_path
from tests.support.asgi import Exchange

PATH, REASON = PATH_HEADER.encode(), REASON_HEADER.encode()


@pytest.mark.parametrize(
    ("status", "outcome", "added"),
    [
        (200, None, [(PATH, DISAGGREGATED.encode())]),
        (
            399,
            Outcome("a", RECOMPUTED, "a\n\u00fcb" + "c" * 300),
            [(PATH, RECOMPUTED.encode()), (REASON, b"a  b" + b"c" * 196)],
        ),
        (400, Outcome("a", RECOMPUTED, "a"), []),
    ],
)
async def test_an_answer_that_is_no_error_says_how_it_was_made(
    status: int, outcome: Outcome | None, added: list[tuple[bytes, bytes]]
) -> None:
    """In its head, which waits for the first piece of the body; a reason is one line of ASCII."""
    exchange, outcomes = Exchange({}), Mock(take=Mock(return_value=outcome))
    named = name_path(exchange.send, "a", cast("Any", outcomes))
    head = {"type": "http.response.start", "status": status, "headers": [(b"x-own", b"1")]}
    body = {"type": "http.response.body", "body": b"1"}

    await named(head)
    sent_before = list(exchange.sent)
    await named(body)
    await named(body)

    assert sent_before == []
    assert exchange.sent == [{**head, "headers": [(b"x-own", b"1"), *added]}, body, body]
