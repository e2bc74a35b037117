"""Tokens of a whole answer are named while it is made; the answer stands behind them."""

import asyncio
import json

import pytest

from baton.contracts.http import ANSWER_COMMENT, TOKENS_COMMENT, TOKENS_TYPE
from baton.node.http import tokens_ahead
from baton.node.http.token_ids import TokenLog
from baton.node.http.tokens_ahead import naming_ahead
from tests.support.asgi import Exchange

HEAD = {"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]}
BODY = {"type": "http.response.body", "body": b'{"a": 1}'}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_ahead, "NAME_EVERY_S", 0.01)


async def test_an_answer_stands_behind_its_tokens() -> None:
    exchange, log = Exchange({}), TokenLog()

    async with naming_ahead(exchange.send, log) as answer:
        log.add(0, [5], ended=False)
        log.add(2, [6, 7], ended=False)
        await asyncio.sleep(0.1)
        log.add(0, [8], ended=True)
        await answer(HEAD)
        await asyncio.sleep(0.05)  # nothing is named any more
        await answer(BODY)

        await answer(end := {"type": "http.response.body", "body": b""})

    start, lines, last, behind = exchange.sent
    assert behind == end
    assert (start["status"], start["headers"]) == (200, [(b"content-type", TOKENS_TYPE.encode())])
    assert lines["body"] == TOKENS_COMMENT + b"0 5\n" + TOKENS_COMMENT + b"2 6,7\n"
    assert lines["more_body"]
    rest, line, body = last["body"].split(b"\n", 2)
    assert rest == TOKENS_COMMENT + b"0 8"
    assert json.loads(line.removeprefix(ANSWER_COMMENT)) == {
        "status": 201,
        "headers": [["content-type", "application/json"]],
    }
    assert body == BODY["body"]
    assert not last.get("more_body")


async def test_an_answer_that_is_there_first_is_sent_as_it_is() -> None:
    """So is an error before the first token."""
    exchange = Exchange({})

    async with naming_ahead(exchange.send, TokenLog()) as answer:
        await asyncio.sleep(0.03)
        await answer(HEAD)
        await answer(BODY)
        await asyncio.sleep(0.03)

    assert exchange.sent == [HEAD, BODY]


async def test_a_block_that_ends_without_an_answer_ends_at_once() -> None:
    exchange = Exchange({})

    with pytest.raises(LookupError):
        async with asyncio.timeout(10), naming_ahead(exchange.send, TokenLog()):
            raise LookupError

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert exchange.sent == []
