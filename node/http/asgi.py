"""Small pieces of ASGI: types, a JSON answer, a body read once and given out again."""

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from baton.contracts.http import error_body

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 503: "service_unavailable"}


async def send_json(send: Send, status: int, content: object, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    body = json.dumps(content).encode()
    sizes = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*sizes, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, status: int, message: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with an error in OpenAI's shape."""
    kind = _KINDS.get(status, "invalid_request_error")
    await send_json(send, status, error_body(message, kind=kind, code=status), headers)


async def read_body(receive: Receive, send: Send, max_bytes: int | None = None) -> bytes | None:
    """Read a request's whole body; None if the client left first, or was told that it is larger than `max_bytes`."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if max_bytes is not None and size > max_bytes:
            await send_error(send, 413, f"the body is larger than {max_bytes} bytes")
            return None
        if not message.get("more_body", False):
            return b"".join(chunks)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives out `body` and then whatever comes, which can only be the disconnect."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def header(scope: Scope, name: bytes) -> bytes:
    """Return a request header's value, empty if there is none."""
    return next((value for key, value in scope["headers"] if key.lower() == name), b"")
