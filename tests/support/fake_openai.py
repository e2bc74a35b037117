"""A fake OpenAI server with a fixed TTFT and ITL, models, metrics, and a fault for each request that is told to have one.

It answers with vLLM's events (`fake_answers`).
"""

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from baton.contracts.http import PATH_HEADER, error_body
from tests.support.fake_answers import MODEL, Asked, stream, understand
from tests.support.fake_asgi import answer_json, follow_lifespan, read_body
from tests.support.serve import serve

Fault = Literal["", "status", "hang", "drop", "empty", "no token", "cut", "silent end", "error event", "garbage"]
METRICS: Final = """\
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum{{engine="0"}} {ttft}
vllm:time_to_first_token_seconds_count{{engine="0"}} {n}
vllm:time_to_first_token_seconds_sum{{engine="1"}} {ttft}
vllm:time_to_first_token_seconds_count{{engine="1"}} {n}
# TYPE baton_hidden_share histogram
baton_hidden_share_sum {hidden}
baton_hidden_share_count {n}
# TYPE baton_transfers_total counter
baton_transfers_total{{outcome="loaded",reason=""}} {n}
baton_transfers_total{{outcome="recomputed",reason="timeout"}} 3
"""


class _Protocol(HttpToolsProtocol):
    """Lets the application reach its connection, and sends at once, as real servers do.

    asyncio sees to that only for sockets that it made itself; else the first token waits for the head's acknowledgement.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["fake.transport"] = self.transport  # type: ignore[typeddict-unknown-key]


class FakeOpenAI:
    """The server; an ASGI application."""

    def __init__(self, *, ttft_s: float = 0.0, itl_s: float = 0.0) -> None:
        self.ttft_s = ttft_s
        self.itl_s = itl_s
        self.bodies: list[dict[str, Any]] = []  # of all requests, in order
        self.headers: list[dict[str, str]] = []
        self.clients: set[tuple[str, int]] = set()  # addresses of their connections
        self.faults: dict[int, Fault] = {}  # by the request's place in that order
        self.path = ""  # x-baton-path of the answers
        self.words: Callable[[dict[str, Any]], str] | None = None  # answers with this text, in one token
        self.usage = True
        self.open = 0
        self.most_open = 0
        self.began = asyncio.Event()  # a request has come

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await follow_lifespan(receive, send)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["path"] == "/v1/models":
            return await answer_json(send, 200, {"object": "list", "data": [{"id": MODEL}, {"id": "another"}]})
        if scope["path"] == "/metrics":
            n = len(self.bodies)
            return await answer_json(send, 200, METRICS.format(n=n, ttft=0.25 * n, hidden=0.5 * n).encode())
        index = len(self.bodies)
        self.bodies.append(json.loads(await read_body(receive)))
        self.headers.append(headers)
        self.clients.add(tuple(scope["client"]))
        self.began.set()
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        watcher = asyncio.create_task(_cancel_when_gone(receive, asyncio.current_task()))
        try:
            await self._answer(scope, self.bodies[index], self.faults.get(index, ""), send)
        except asyncio.CancelledError:
            if not watcher.done():
                raise
        finally:
            self.open -= 1
            watcher.cancel()
        return None

    async def _answer(self, scope: Any, body: dict[str, Any], fault: Fault, send: Any) -> None:
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "drop":
            scope["fake.transport"].abort()
            return
        if fault == "status":
            await answer_json(send, 503, error_body("the fake is overloaded", kind="server_error", code=503))
            return
        names = [
            (b"content-type", b"text/event-stream"),
            *([(PATH_HEADER.encode(), self.path.encode())] * bool(self.path)),
        ]
        began_s = time.perf_counter()
        await asyncio.sleep(self.ttft_s)
        await send({"type": "http.response.start", "status": 200, "headers": names})
        parts = [] if fault == "empty" else list(self._parts(scope["path"], body))
        if fault == "no token":
            parts = parts[-1:]
        half = len(parts) // 2
        for at, part in enumerate(parts):
            if fault in ("cut", "error event", "garbage") and at == half:
                await self._spoil(scope, fault, send)
                if fault == "cut":
                    return
                continue
            if fault == "silent end" and at == len(parts) - 1:
                break
            if 0 < at < len(parts) - 1:  # on a grid, so that no delay of this process adds up
                await asyncio.sleep(max(0.0, began_s + self.ttft_s + at * self.itl_s - time.perf_counter()))
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _spoil(self, scope: Any, fault: Fault, send: Any) -> None:
        if fault == "cut":
            await asyncio.sleep(0.05)  # what was sent must arrive before the connection ends
            scope["fake.transport"].abort()
            return
        wrong = b"no json" if fault == "garbage" else json.dumps(error_body("the engine died")).encode()
        await send({"type": "http.response.body", "body": b"data: " + wrong + b"\n\n", "more_body": True})

    def _parts(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        if self.words is not None:
            said = self.words(body)
            choice = {"delta": {"content": said}} if "chat" in path else {"text": said}
            yield b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"
            return
        asked: Asked = understand(path, body, 3, 1, 0)
        if not self.usage:
            asked = Asked(path=path, tokens=asked.tokens)
        yield from itertools.chain(stream(asked))


async def _cancel_when_gone(receive: Any, task: asyncio.Task[Any] | None) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if task is not None:
        task.cancel()


def serving(app: FakeOpenAI) -> contextlib.AbstractAsyncContextManager[str]:
    return serve(app, http=_Protocol)
