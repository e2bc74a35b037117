"""How long a prefill node's first event is held."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.node.http.api import frontend_digest
from baton.node.http.asgi import Message
from baton.node.http.held_response import hold_stream
from baton.node.http.token_ids import TokenLog, name_tokens
from tests.support.asgi import Exchange


class Connector:
    """Says of transfer `a` that there is room, when it may."""

    def __init__(self) -> None:
        self.reserved = asyncio.Event()
        self.asked: list[tuple[str, float]] = []

    async def wait_until_reserved(self, transfer_id: str, timeout_s: float) -> bool:
        self.asked.append((transfer_id, timeout_s))
        return await self.reserved.wait()


HEAD: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}


CREATED = b"event: response.created\ndata: {}\n\n"


def body(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def test_the_first_event_is_held_until_the_decode_node_has_room() -> None:
    """The head goes out at once, and so do comments, what a response begins with before its tokens, and later events; what is known of tokens by then stands before the event."""
    connector, log, exchange = Connector(), TokenLog(), Exchange({})
    sent = exchange.sent
    named = hold_stream(name_tokens(exchange.send, log), "a", cast("Any", connector), 2.5, log)
    await named(HEAD)
    await named(body(b": ping\n\n"))
    await named(body(CREATED))
    log.add(0, [17], ended=False)
    held = asyncio.ensure_future(named(body(b"data: 1\n\n")))
    await asyncio.sleep(0.01)
    assert sent == [HEAD, body(b": ping\n\n"), body(CREATED)]
    log.add(0, [], ended=False)
    connector.reserved.set()
    await held
    await named(body(b"data: 2\n\n"))

    assert sent[3:] == [body(b": baton tokens 0 17\ndata: 1\n\n"), body(b"data: 2\n\n")]
    assert connector.asked == [("a", 2.5)]


@pytest.mark.parametrize("ids", [[], [17]])
async def test_what_needs_no_decode_node_is_not_held(ids: list[int]) -> None:
    """An error of the server's; an answer that its own parameters, or the model, end with the first token."""
    exchange, log = Exchange({}), TokenLog()
    log.add(0, ids, ended=True)

    await hold_stream(exchange.send, "a", cast("Any", Connector()), 2.5, log)(body(b'{"error":{}}'))

    assert exchange.sent == [body(b'{"error":{}}')]


@pytest.mark.parametrize(
    ("event", "is_left_out"),
    [
        (b'event: content_block_start\ndata: {"content_block":{"type":"text"}}\n\n', True),
        (b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"EN"}}\n\n', True),
        (b"event: content_block_stop\ndata: {}\n\n", False),
        (b"event: message_delta\ndata: {}\n\n", False),
        (b"event: response.output_item.added\ndata: {}\n\n", True),
        (b"event: response.function_call_arguments.delta\ndata: {}\n\n", True),
        (b"event: response.output_text.done\ndata: {}\n\n", False),
        (b"event: response.incomplete\ndata: {}\n\n", False),
        (b"event: error\ndata: {}\n\n", False),
        (b'data: {"choices":[{"finish_reason":"abort"}]}\n\n', False),
    ],
)
@pytest.mark.parametrize("reason", [None, "stop", "abort"])
async def test_what_vllm_held_back_is_left_out_where_the_answer_goes_on_elsewhere(
    event: bytes, is_left_out: bool, reason: str | None
) -> None:
    """Text that may begin a stop string, or stand before a tool call: one server would have read on."""
    exchange, log = Exchange({}), TokenLog()
    named = hold_stream(exchange.send, "a", cast("Any", Connector()), 2.5, log)
    await named(body(b"event: message_start\ndata: {}\n\n"))
    log.read(SimpleNamespace(outputs=[SimpleNamespace(finish_reason=reason)]))
    await named(body(event))

    assert (body(event) in exchange.sent) == (not is_left_out or reason != "abort")


def test_a_digest_tells_servers_apart_that_stream_otherwise() -> None:
    """A parser or template of one node alone changes it; a port does not."""

    def digest(**given: Any) -> str:
        return frontend_digest(type("Arguments", (), {"tool_call_parser": None, **given}))

    assert digest(port=1) == digest(port=2)
    assert digest(tool_call_parser="hermes") != digest()
    assert digest(chat_template="a.jinja") != digest()
