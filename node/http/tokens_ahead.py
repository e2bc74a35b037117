"""The tokens of an answer that is not streamed, named to the proxy while it is made, so that another node could go on with it.

The answer stands behind all of them: a line `: baton answer {"status": 200, "headers": [[…, …], …]}`, then its body.
One that is there before the first tokens would be named is sent as it is.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from baton.contracts.http import ANSWER_COMMENT, TOKENS_TYPE
from baton.node.http.asgi import Message, Send
from baton.node.http.token_ids import TokenLog

NAME_EVERY_S: Final = 0.5


@asynccontextmanager
async def naming_ahead(send: Send, log: TokenLog) -> AsyncIterator[Send]:
    """Name an answer's tokens, for the length of a block; yields the `send` for the answer itself."""
    ahead = _Ahead(send, log)
    naming = asyncio.create_task(ahead.name())
    try:
        yield ahead.send
    finally:
        naming.cancel()
        await asyncio.gather(naming, return_exceptions=True)


class _Ahead:
    def __init__(self, send: Send, log: TokenLog) -> None:
        self._send = send
        self._log = log
        self._lock = asyncio.Lock()
        self._has_begun = False  # tokens have been named
        self._is_answered = False
        self._head: Message | None = None  # of the answer, behind tokens

    async def name(self) -> None:
        while True:
            await asyncio.sleep(NAME_EVERY_S)
            async with self._lock:
                if self._is_answered:
                    return
                if lines := self._log.take():
                    await self._begin()
                    await self._send({"type": "http.response.body", "body": lines, "more_body": True})

    async def send(self, message: Message) -> None:
        async with self._lock:
            self._is_answered = True
            if not self._has_begun:
                await self._send(message)
            elif message["type"] == "http.response.start":
                self._head = message
            else:
                ahead = b"" if self._head is None else self._log.take() + _line(self._head)
                self._head = None
                await self._send({**message, "body": ahead + message.get("body", b"")})

    async def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            headers = [(b"content-type", TOKENS_TYPE.encode())]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def _line(head: Message) -> bytes:
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in head.get("headers", ())]
    return ANSWER_COMMENT + json.dumps({"status": head["status"], "headers": headers}).encode() + b"\n"
