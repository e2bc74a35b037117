import json
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from baton.contracts.http import CANCEL_PATH, MAX_CANCELLED
from baton.node.errors import ConnectorSilentError
from baton.node.http.asgi import Message
from baton.node.http.cancel import MAX_BODY_BYTES, cancel_transfers
from tests.support.asgi import Exchange, body_of, http

A, B = "a" * 32, "b" * 32


async def ask(messages: list[Message], *, method: str = "POST", cancel: AsyncMock | None = None) -> Exchange:
    """Ask a node of which one transfer is open, unless `cancel` says otherwise."""
    exchange = Exchange(http(method, CANCEL_PATH), messages)
    exchange.disconnect()
    connector = Mock(cancel=cancel or AsyncMock(return_value=1))
    await cancel_transfers(connector, exchange.scope, exchange.receive, exchange.send)
    return exchange


def cancels(*transfer_ids: Any) -> list[Message]:
    return body_of(json.dumps({"transfer_ids": transfer_ids}).encode())


async def test_transfers_are_cancelled() -> None:
    cancel = AsyncMock(return_value=1)

    exchange = await ask(cancels(A, B, A), cancel=cancel)

    cancel.assert_awaited_once_with([A, B])
    assert (exchange.status, json.loads(exchange.body)) == (200, {"cancelled": 2, "were_open": 1})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[]",
        b"{}",
        json.dumps({"transfer_ids": A}).encode(),
        json.dumps({"transfer_ids": [A.upper()]}).encode(),
        json.dumps({"transfer_ids": [None]}).encode(),
        json.dumps({"transfer_ids": [f"{number:032x}" for number in range(MAX_CANCELLED + 1)]}).encode(),
    ],
    ids=["empty", "no JSON", "deep", "a list", "no ids", "text", "upper case", "null", "too many"],
)
async def test_what_is_no_list_of_ids_is_refused(body: bytes) -> None:
    cancel = AsyncMock()

    exchange = await ask(body_of(body[:MAX_BODY_BYTES]), cancel=cancel)

    assert exchange.status == 400
    assert json.loads(exchange.body)["error"]["message"]
    assert not cancel.called


async def test_as_many_as_are_allowed_fit() -> None:
    """The bound on bytes does not undercut the bound on ids."""
    exchange = await ask(cancels(*(f"{number:032x}" for number in range(MAX_CANCELLED))))

    assert exchange.status == 200
    assert json.loads(exchange.body)["cancelled"] == MAX_CANCELLED


async def test_other_methods_and_bodies_without_end_are_refused() -> None:
    other = await ask([], method="GET")
    piece = b" " * 50_000

    assert (other.status, other.headers["allow"]) == (405, "POST")
    assert (await ask(body_of(piece, piece, piece))).status == 413


async def test_a_caller_that_leaves_amid_its_body_is_forgotten() -> None:
    cancel = AsyncMock()

    exchange = await ask([{"type": "http.request", "body": b"{", "more_body": True}], cancel=cancel)

    assert exchange.sent == []
    assert not cancel.called


async def test_a_connector_that_does_not_take_it_is_unavailable() -> None:
    exchange = await ask(cancels(A), cancel=AsyncMock(side_effect=ConnectorSilentError("no answer")))

    assert exchange.status == 503
    assert json.loads(exchange.body)["error"]["message"] == "no answer"
