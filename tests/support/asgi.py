"""Drives an ASGI application by hand: messages in, messages out, no server."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from baton.node.http.asgi import App, Message, Scope


def http(method: str, path: str, headers: Iterable[tuple[str, str]] = ()) -> Scope:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers]
    return {"type": "http", "method": method, "path": path, "headers": pairs}


def body_of(*pieces: bytes) -> list[Message]:
    """A request's body in as many messages as there are pieces."""
    last = len(pieces) - 1
    return [{"type": "http.request", "body": piece, "more_body": at < last} for at, piece in enumerate(pieces)]


class Exchange:
    """One request, and what came of it.

    After the given messages `receive` waits, as a server's does, until `disconnect` is called.
    """

    def __init__(self, scope: Scope, messages: Sequence[Message] = ()) -> None:
        self.scope = scope
        self.sent: list[Message] = []
        self._messages = list(messages)
        self._gone = asyncio.Event()

    async def run(self, app: App) -> "Exchange":
        """Let the application handle the request."""
        await app(self.scope, self.receive, self.send)
        return self

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def disconnect(self) -> None:
        self._gone.set()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


class Recorder:
    """An application that reads its request and sends what it is told to."""

    def __init__(self, *answer: Message) -> None:
        self.answer = answer or (
            {"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]},
            {"type": "http.response.body", "body": b"one", "more_body": True},
            {"type": "http.response.body", "body": b"two"},
        )
        self.scopes: list[Scope] = []
        self.received: list[Message] = []
        self.disconnected = False

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Handle a request or the application's life span."""
        self.scopes.append(scope)
        if scope["type"] == "http" and scope["method"] == "POST":
            self.received.append(await receive())
        for message in self.answer:
            await send(message)

    async def wait_for_disconnect(self, scope: Scope, receive: Any, send: Any) -> None:
        """Read the body, then wait as vLLM's routes do until the client leaves."""
        self.received.append(await receive())
        self.disconnected = (await receive())["type"] == "http.disconnect"
