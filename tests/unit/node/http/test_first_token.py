"""What stands before a prefill node's first event, and how long that is held."""

import asyncio
from typing import Any, cast

from baton.contracts.http import TOKEN_COMMENT
from baton.node.http.asgi import Message
from baton.node.http.first_token import begin_stream
from baton.node.http.frontend_digest import frontend_digest


class Connector:
    """Says the token of transfer `a`, and its reservation when it may."""

    def __init__(self, token: int | None) -> None:
        self.token = token
        self.reserved = asyncio.Event()
        self.asked_s: list[float] = []

    def take_token(self, transfer_id: str) -> int | None:
        """Return the token."""
        return self.token if transfer_id == "a" else None

    async def wait_until_reserved(self, _transfer_id: str, timeout_s: float) -> bool:
        """Wait for the reservation."""
        self.asked_s.append(timeout_s)
        return await self.reserved.wait()


HEAD: Message = {"type": "http.response.start", "status": 200, "headers": []}


def body(data: bytes) -> Message:
    """A piece of a response."""
    return {"type": "http.response.body", "body": data, "more_body": True}


async def test_the_first_event_is_held_until_the_decode_node_has_room() -> None:
    """The head goes out at once; the token's id stands before the first event, and before no other."""
    connector, sent = Connector(17), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    named = begin_stream(send, "a", cast("Any", connector), 2.5)
    await named(HEAD)
    held = asyncio.ensure_future(named(body(b"data: 1\n\n")))
    await asyncio.sleep(0.01)
    assert sent == [HEAD]
    connector.reserved.set()
    await held
    await named(body(b"data: 2\n\n"))

    assert sent[1:] == [body(TOKEN_COMMENT + b"17\n\ndata: 1\n\n"), body(b"data: 2\n\n")]
    assert connector.asked_s == [2.5]


async def test_without_a_token_nothing_is_held() -> None:
    """An error of the server's passes as it is."""
    connector, sent = Connector(None), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    await begin_stream(send, "a", cast("Any", connector), 2.5)(body(b'{"error":{}}'))

    assert sent == [body(b'{"error":{}}')]


def test_a_digest_tells_servers_apart_that_stream_otherwise() -> None:
    """A parser or template of one node alone changes it; a port does not."""

    def digest(**given: Any) -> str:
        return frontend_digest(type("Arguments", (), {"tool_call_parser": None, **given}))

    assert digest(port=1) == digest(port=2)
    assert digest(tool_call_parser="hermes") != digest()
    assert digest(chat_template="a.jinja") != digest()
