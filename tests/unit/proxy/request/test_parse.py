import asyncio
from typing import Any

import msgspec
import pytest

from baton.proxy.errors import BadRequestError, BodyTooLargeError, ClientGoneError
from baton.proxy.request import parse as parse_module
from baton.proxy.request.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from baton.proxy.request.parse import ClientRequest, discard_body, is_reset_unless_read, parse, read_body


def parsed(body: bytes, endpoint: str = COMPLETIONS) -> ClientRequest:
    return parse(endpoint, "id", [], body)


MALFORMED_COMPLETIONS = [
    (b"", "not valid JSON"),
    (b"{", "not valid JSON"),
    (b'{"model":"m","prompt":"a"} trailing', "not valid JSON"),
    (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON"),
    (b"[1]", "must be a JSON object"),
    (b'"text"', "must be a JSON object"),
    (b'{"model":7,"prompt":"a"}', "'model' must be of type string, not number"),
    (b'{"model":"\xff","prompt":"a"}', "'model' is not a valid string"),
    (b'{"model":"m"}', "must provide 'prompt'"),
    (b'{"model":"m","prompt":null}', "must provide 'prompt'"),
    (b'{"model":"m","prompt":{}}', "'prompt' must be of type array or string, not object"),
    (b'{"model":"m","prompt":"a","stream":"maybe"}', "'stream' must be of type boolean, not string"),
    (b'{"model":"m","prompt":"a","stream":2}', "'stream' must be of type boolean, not number"),
    (b'{"model":"m","prompt":"a","max_tokens":"7.5"}', "'max_tokens' must be of type number, not string"),
    (b'{"model":"m","prompt":"a","temperature":"inf"}', "'temperature' must be of type number, not string"),
    (b'{"model":"m","prompt":"a","n":[1]}', "'n' must be of type number, not array"),
]


@pytest.mark.parametrize(
    ("body", "message", "endpoint"),
    [
        *((body, message, COMPLETIONS) for body, message in MALFORMED_COMPLETIONS),
        (b'{"model":"m","prompt":"a"}', "must provide 'messages'", CHAT),
        (b'{"model":"m","messages":"hello"}', "'messages' must be of type array", CHAT),
        (b'{"model":"m","prompt":"a"}', "must provide 'input'", RESPONSES),
        (b'{"model":"m","input":7}', "'input' must be of type array or string", RESPONSES),
        (b'{"model":"m","input":"a"}', "must provide 'messages'", MESSAGES),
    ],
)
def test_a_malformed_body_is_refused_with_a_sentence(body: bytes, message: str, endpoint: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        parsed(body, endpoint)


def test_values_are_read_as_vllm_reads_them() -> None:
    """Clients that send forms write numbers and booleans as text; both legs get the value and not the text."""
    given = b'"max_tokens":" 3 ","n":"2","temperature":"0.5","seed":true,"stream":1,"echo":"False","min_tokens":"1.0"'

    fields = parsed(b'\xef\xbb\xbf{"prompt":"a",' + given + b"}").fields

    assert msgspec.json.decode(msgspec.json.encode(fields)) == {
        "prompt": "a",
        "max_tokens": 3,
        "n": 2,
        "temperature": 0.5,
        "seed": 1,
        "stream": True,
        "echo": False,
        "min_tokens": 1,
    }


def test_integers_are_integers_however_they_are_written() -> None:
    """How many answers a request gets is counted here; what is none, a node refuses."""
    fields = parsed(b'{"prompt":"a","n":2.0,"best_of":2e0,"priority":-1,"seed":null,"max_tokens":2.5}').fields

    numbers = {name: bytes(value) for name, value in fields.items() if name != "prompt"}
    assert numbers == {"n": b"2", "best_of": b"2", "priority": b"-1", "seed": b"null", "max_tokens": b"2.5"}


def test_what_connectors_read_is_removed() -> None:
    body = (
        b'{"model":"m","prompt":"a","kv_transfer_p\\u0061rams":{"x":1},"ec_transfer_params":{},'
        b'"vllm_xargs":{"kv_transfer_params":"x","mine":1}}'
    )

    fields = parsed(body).fields

    assert msgspec.json.encode(fields) == b'{"model":"m","prompt":"a","vllm_xargs":{"mine":1}}'


def read(*parts: bytes | None, declared: bytes = b"") -> bytes:
    """Read a body of at most ten bytes that comes in these parts; the client leaves where there is None."""
    messages = iter(parts)

    async def receive() -> dict[str, Any]:
        part = next(messages)
        return (
            {"type": "http.disconnect"} if part is None else {"type": "http.request", "body": part, "more_body": part}
        )

    headers = [(b"content-length", declared)] if declared else []
    return asyncio.run(read_body({"type": "http", "headers": headers}, receive, 10))


def test_a_body_is_read_in_parts() -> None:
    assert read(b"ab", b"c", b"") == b"abc"
    assert read(b"123456", b"7890", b"", declared=b"10") == b"1234567890"  # as many as there may be


@pytest.mark.parametrize(
    ("parts", "declared", "error"),
    [
        # It is believed before the first byte is taken: `100-continue` is answered with 413.
        ((), b"11", BodyTooLargeError),
        ((b"123456", b"12345"), b"", BodyTooLargeError),  # a chunked upload is counted as it comes
        ((b"1", None), b"", ClientGoneError),
    ],
)
def test_a_body_that_is_not_read_to_its_end(
    parts: tuple[bytes | None, ...], declared: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        read(*parts, declared=declared)


@pytest.mark.parametrize("body", [b'{"prompt":"a"}', b'{"model":null,"prompt":"a"}', b'{"model":"","prompt":"a"}'])
def test_a_request_may_leave_the_model_to_the_node(body: bytes) -> None:
    """As with one vLLM server, which has one model."""
    assert parsed(body).model == ""


def test_a_response_has_its_prompt_in_its_input() -> None:
    """A `prompt` there is a stored template."""
    request = parsed(b'{"model":"m","input":"a","prompt":{"id":"p"}}', RESPONSES)

    assert bytes(request.prompt) == b'"a"'
    assert request.prompt_bytes == 3


@pytest.mark.parametrize(
    ("version", "headers", "is_reset"),
    [
        ("1.1", [], False),
        ("1.0", [], True),
        ("1.1", [(b"connection", b"Close")], True),
        ("1.1", [(b"connection", b"keep-alive")], False),
        ("1.0", [(b"connection", b"close"), (b"expect", b"100-continue")], False),
    ],
)
def test_a_connection_that_its_client_wants_closed_is_reset_unless_read(
    version: str, headers: list[tuple[bytes, bytes]], is_reset: bool
) -> None:
    """A client that waits to be asked for its body sends none."""
    assert is_reset_unless_read({"type": "http", "http_version": version, "headers": headers}) == is_reset


async def test_a_body_is_discarded_up_to_its_end_or_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [True, True, False, True]

    async def receive() -> dict[str, Any]:
        return {"more_body": left.pop(0)}

    async def receive_nothing() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    await discard_body(receive)
    assert left == [True]
    monkeypatch.setattr(parse_module, "DISCARD_S", 0.01)
    await asyncio.wait_for(discard_body(receive_nothing), 10)
