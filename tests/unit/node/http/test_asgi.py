"""A body that is read once and given out again, and answers in JSON."""

import json

import pytest

from baton.node.http.asgi import header, read_body, replay, send_error, send_json
from tests.support.asgi import Exchange, body_of, http


@pytest.mark.parametrize(
    ("pieces", "is_read"), [((b"12", b"345"), True), ((b"123456",), False), ((b"12", b"3456"), False)]
)
async def test_a_body_that_is_too_large_is_refused(pieces: tuple[bytes, ...], is_read: bool) -> None:
    exchange = Exchange(http("POST", "/"), body_of(*pieces))

    body = await read_body(exchange.receive, exchange.send, 5)

    assert body == (b"".join(pieces) if is_read else None)
    assert [each.get("status") for each in exchange.sent] == ([] if is_read else [413, None])


async def test_a_body_whose_sender_leaves_is_none() -> None:
    exchange = Exchange(http("POST", "/"), body_of(b"1", b"2")[:1])
    exchange.disconnect()

    assert await read_body(exchange.receive, exchange.send) is None
    assert exchange.sent == []


async def test_what_comes_behind_a_body_that_is_given_out_again() -> None:
    exchange = Exchange(http("POST", "/"))
    receive = replay(b"12", exchange.receive)
    exchange.disconnect()

    assert await receive() == {"type": "http.request", "body": b"12", "more_body": False}
    assert await receive() == {"type": "http.disconnect"}


def test_a_header_is_found_by_its_name() -> None:
    scope = {"headers": [(b"X-Other", b"1"), (b"X-Own", b"2")]}

    assert [header(scope, name) for name in (b"x-own", b"x-none")] == [b"2", b""]


async def test_an_answer_says_its_length() -> None:
    exchange = Exchange(http("GET", "/"))

    await send_json(exchange.send, 203, {"a": 1}, [(b"x-own", b"1")])

    assert (exchange.status, exchange.body) == (203, b'{"a": 1}')
    assert exchange.headers == {"content-type": "application/json", "content-length": "8", "x-own": "1"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (503, "service_unavailable"),
    ],
)
async def test_an_error_has_openais_shape(status: int, kind: str) -> None:
    exchange = Exchange(http("POST", "/"))

    await send_error(exchange.send, status, "no", [(b"retry-after", b"1")])

    assert (exchange.status, exchange.headers["retry-after"]) == (status, "1")
    assert json.loads(exchange.body)["error"] == {"message": "no", "type": kind, "param": None, "code": status}
