"""A strict fake of a Baton node: vLLM's OpenAI routes, the node API, and faults on demand.

It answers 400 to whatever the proxy must never send (`strict_node.py`). It records each request and whether its connection was
closed before the answer was complete. A decode node waits until the prefill node of the same `Fabric` has computed
the prompt, so that a lost prefill leg shows as what it is: a decode node that waits for ever. A stream that starts with tokens says
those first, and goes on without KV once its source is gone or was told that nothing is wanted. Cancels of transfers are noted call by call.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from baton.contracts.http import (
    AHEAD,
    ANSWER_COMMENT,
    CANCEL_PATH,
    MAX_CANCELLED,
    NODE_PATH,
    TOKEN_IDS_HEADER,
    TOKENS_COMMENT,
    TOKENS_TYPE,
    error_body,
)
from baton.contracts.kv_transfer import is_transfer_id
from baton.contracts.node_info import NodeLoad
from baton.contracts.secret import ClusterSecret
from tests.support.described import node_info
from tests.support.fake_answers import FIRST_ID, MODEL, prefill_part, stream, understand, whole
from tests.support.fake_asgi import answer_json, follow_lifespan, read_body
from tests.support.fake_fabric import Fabric
from tests.support.fake_typed import MESSAGES, RESPONSES, TypedAnswer, typed_whole
from tests.support.serve import Listening
from tests.support.strict_node import RefusedError, Seen, StrictNode

SECRET = ClusterSecret(b"a secret for tests only")
Fault = Literal[
    "",
    "status",  # answer `status` with `error`
    "hang",  # accept and never answer
    "drop",  # close the connection without an answer
    "empty",  # 200, an empty body
    "cut",  # close the connection in the middle of the answer
    "cut in event",  # the same in the middle of an event
    "stall",  # say nothing from the middle of a stream on, until `may_go_on`
    "silent end",  # end the stream cleanly before its last event
    "error first",  # begin the stream with an error event, as vLLM does whose engine died before the first token
    "error event",  # the same in the middle of the stream
]
OPERATED = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache")


class _Protocol(HttpToolsProtocol):
    """Lets the application reach its connection."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["fake.transport"] = self.transport  # type: ignore[typeddict-unknown-key]


class FakeVllm(StrictNode):
    def __init__(
        self,
        role: Literal["prefill", "decode"],
        fabric: Fabric,
        *,
        tokens: int = 3,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        super().__init__(role, SECRET, node_info(role, model="/models/fake", served_models=[MODEL]))
        self.fabric = fabric
        self.tokens = tokens  # made where a request does not say how many
        self.names_tokens = True  # to the proxy, if it asks
        self.names_ahead = 0  # so many tokens, of an answer that is not streamed
        self.starts = True  # with the tokens that it is given
        self.drift = 0  # by how many tokens its answers differ from those of other nodes
        self.created = 1  # part of each answer, and of its id
        self.seen: list[Seen] = []
        self.fault: Fault = ""
        self.fault_of: Callable[[Seen], Fault] = lambda _: self.fault  # those of a request before it is answered
        self.stalled = 0  # streams, so far
        self.computed = 0  # streams that started with tokens and got no KV, so far
        self.status = 500
        self.error: Any = error_body("the engine is dead", kind="InternalServerError", code=500)
        self.healthy = True
        self.late_probes = 0  # so many of the next probes get no answer
        self.probes = 0  # of its health, answered
        self.may_answer = asyncio.Event()  # requests wait until then
        self.may_answer.set()
        self.may_go_on = asyncio.Event()
        self.first_token_delay_s = 0.0
        self.token_delay_s = 0.0
        self.padding_bytes = 0  # of a comment after each event of a stream, or of spaces after a whole answer
        self.sent_bytes = 0  # of streams, handed over to the connection
        self.recomputes = False
        self.has_node_api = True
        self.passed: dict[tuple[str, str], tuple[int, bytes, bytes]] = {}  # route → status, kind and body of its answer
        self.was_passed: list[tuple[str, str, str, dict[str, str], bytes]] = []  # method, path, query, headers, body
        self.operated: list[tuple[str, str, bytes]] = []  # path, query and body of calls to `OPERATED`
        self.cancels: list[list[str]] = []  # transfer ids, call by call
        self.cancel_statuses: list[int] = []  # of the next cancels, instead of 200
        self.cancels_may_end = asyncio.Event()  # they hang until then
        self.cancels_may_end.set()
        self.tells_load = True
        self.also_tells: Callable[[], dict[str, Any]] = dict  # further fields of its load, at each probe
        self._load = (0, 0)  # requests in flight, bytes of their bodies
        self._stopping = asyncio.Event()
        self._listening = Listening(self, host, port, http=_Protocol)

    @property
    def url(self) -> str:
        return self._listening.url

    async def start(self) -> None:
        self._stopping.clear()
        await self._listening.start()

    async def stop(self) -> None:
        """Die: refuse connections, cut open ones."""
        self.cancels_may_end.set()
        self.fabric.lost.set()
        self._stopping.set()
        await self._listening.stop()

    def change(self, **changes: Any) -> None:
        """Describe the node differently from now on."""
        self.info = msgspec.structs.replace(self.info, **changes)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await follow_lifespan(receive, send)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] == "GET":
            return await self._get(scope, headers, send)
        body = await read_body(receive)
        if scope["path"] == CANCEL_PATH:
            return await self._cancel(headers, body, send)
        if scope["path"] in OPERATED:
            return await self._operate(scope, body, send)
        if ("POST", scope["path"]) in self.passed:
            return await self._pass(scope, headers, body, send)
        seen = Seen(scope["path"], headers, json.loads(body))
        self.seen.append(seen)
        watcher = asyncio.create_task(_cancel_when_gone(receive, seen, asyncio.current_task()))
        self._carry(1, len(body))
        try:
            await self._post(seen, scope["fake.transport"], send)
            seen.finished = True
        except asyncio.CancelledError:
            if not seen.cancelled:
                raise
        except RefusedError as exc:
            await answer_json(send, exc.status, error_body(str(exc), code=exc.status))
            seen.finished = True
        finally:
            self._carry(-1, -len(body))
            watcher.cancel()

    async def _operate(self, scope: Any, body: bytes, send: Any) -> None:
        """Note a call of an operator's; adapters are served from it on, or no more."""
        self.operated.append((scope["path"], scope["query_string"].decode(), body))
        if self.fault == "status":
            return await answer_json(send, 400, b"no")
        if "lora" in scope["path"]:
            name = json.loads(body)["lora_name"]
            others = [each for each in self.info.served_models if each != name]
            self.change(served_models=others if "unload" in scope["path"] else [*others, name])
        return await answer_json(send, 200, b"Success" if body else {})

    async def _pass(self, scope: Any, headers: dict[str, str], body: bytes, send: Any) -> None:
        """Answer a route of the engine's as a test has said."""
        method, path = scope["method"], scope["path"]
        self.was_passed.append((method, path, scope["query_string"].decode(), headers, body))
        status, kind, answer = self.passed[method, path]
        head = [(b"content-type", kind), (b"content-length", b"%d" % len(answer)), (b"x-engine", b"yes")]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    def _carry(self, requests: int, prompt_bytes: int) -> None:
        self._load = self._load[0] + requests, self._load[1] + prompt_bytes

    async def _get(self, scope: Any, headers: dict[str, str], send: Any) -> None:
        path = scope["path"]
        if self.late_probes:
            self.late_probes -= 1
            await self._stopping.wait()
        if path == "/health":
            self.probes += 1
            await answer_json(send, 200 if self.healthy else 503, {})
        elif ("GET", path) in self.passed:
            await self._pass(scope, headers, b"", send)
        elif path != NODE_PATH or not self.has_node_api:
            await answer_json(send, 404, {"detail": "Not Found"})
        elif headers.get("authorization") != f"Bearer {SECRET.node_token()}":
            await answer_json(send, 401, {"error": "Unauthorized"})
        else:
            own = {"requests": self._load[0], "prompt_bytes": self._load[1]}
            load = NodeLoad(**own, **self.also_tells()) if self.tells_load else None
            await answer_json(send, 200, msgspec.to_builtins(msgspec.structs.replace(self.info, load=load)))

    async def _cancel(self, headers: dict[str, str], body: bytes, send: Any) -> None:
        if headers.get("authorization") != f"Bearer {SECRET.node_token()}":
            return await answer_json(send, 401, {"error": "Unauthorized"})
        ids = json.loads(body)["transfer_ids"]
        self.cancels.append(ids)
        for transfer_id in ids:
            self.fabric.failure(transfer_id).set()
        await self.cancels_may_end.wait()
        if not all(map(is_transfer_id, ids)) or not 0 < len(ids) <= MAX_CANCELLED:
            return await answer_json(send, 400, {"error": "not a list of transfer ids"})
        return await answer_json(send, self.cancel_statuses.pop(0) if self.cancel_statuses else 200, {})

    async def _post(self, seen: Seen, transport: Any, send: Any) -> None:
        fault = self.fault_of(seen)
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "drop":
            transport.abort()
            return
        if fault == "status":
            await answer_json(send, self.status, self.error)
            return
        self._check(seen)
        await self.may_answer.wait()
        await asyncio.sleep(self.first_token_delay_s)
        if seen.params is not None and seen.params.role == "prefill":
            self.fabric.event(seen.params.transfer_id).set()
        elif seen.params is not None and seen.params.peer and not self.recomputes and not _says_start_first(seen):
            await self.fabric.event(seen.params.transfer_id).wait()
        await self._generate(seen, transport, send)

    def _parts(self, seen: Seen, *, streams: bool) -> list[bytes]:
        relays = seen.params is not None and seen.params.relays
        names = self.names_tokens and TOKEN_IDS_HEADER in seen.headers
        if seen.path in (MESSAGES, RESPONSES):
            if not streams:
                return [typed_whole(seen.path, self.tokens)]
            typed = TypedAnswer(seen.path, seen.body, self.tokens, self.created, names=names)
            return typed.prefill_part() if relays else list(typed.stream())
        asked = understand(seen.path, seen.body, self.tokens, self.created, self.drift)
        start = seen.params.start if seen.params is not None and self.starts else ()
        asked = replace(asked, start=start, names=names)
        if relays:
            return prefill_part(asked)
        return list(stream(asked)) if streams else [whole(asked) + b" " * self.padding_bytes]

    async def _send_ahead(self, answer: bytes, transport: Any, send: Any) -> None:
        """Send a whole answer behind its tokens."""
        headers = [(b"content-type", TOKENS_TYPE.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for at in range(self.names_ahead):
            await _send(send, TOKENS_COMMENT + b"0 %d\n" % (FIRST_ID + self.drift + at))
            await asyncio.sleep(self.token_delay_s)
        if self.fault == "stall":
            self.stalled += 1
            await self.may_go_on.wait()
        if self.fault == "cut":
            await asyncio.sleep(0.05)  # what was sent must arrive before the connection ends
            transport.abort()
            return
        head = json.dumps({"status": 200, "headers": [["Content-Type", "application/json"]]}).encode()
        await _send(send, ANSWER_COMMENT + head + b"\n" + answer[:10])
        await _send(send, answer[10:], more=False)

    async def _wait_for_kv(self, seen: Seen, index: int) -> None:
        """Wait before an event that a stream cannot say without KV."""
        if seen.params is None or not seen.params.peer or self.recomputes:
            return
        if index and index == _says_start_first(seen):
            self.computed += not await self.fabric.settled(seen.params.transfer_id)

    async def _generate(self, seen: Seen, transport: Any, send: Any) -> None:
        streams = bool(seen.body.get("stream"))
        headers = [(b"content-type", b"text/event-stream; charset=utf-8" if streams else b"application/json")]
        if self.recomputes:
            headers += [(b"x-baton-path", b"recomputed"), (b"x-baton-reason", b"the peer went silent")]
        headers.append((b"x-baton-secret", b"not for clients"))
        parts = self._parts(seen, streams=streams)
        if self.names_ahead and seen.headers.get(TOKEN_IDS_HEADER) == AHEAD:
            await self._send_ahead(parts[0], transport, send)
            return
        if not streams:
            headers.append((b"content-length", b"%d" % (0 if self.fault == "empty" else len(parts[0]))))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self.fault == "empty":
            parts = []
        if self.fault.startswith("error"):
            good = parts[: 0 if self.fault == "error first" else len(parts) // 2]
            named = b"event: error\n" if seen.path in (MESSAGES, RESPONSES) else b""
            parts = [*good, named + b"data: " + json.dumps(self.error).encode() + b"\n\n", b"data: [DONE]\n\n"]
        for index, part in enumerate(parts):
            await self._wait_for_kv(seen, index)
            if self.fault.startswith("cut") and index == len(parts) // 2:
                half = part[: len(part) // 2] if self.fault == "cut in event" or not streams else b""
                await send({"type": "http.response.body", "body": half, "more_body": True})
                await asyncio.sleep(0.05)  # what was sent must arrive before the connection ends
                transport.abort()
                return
            if self.fault == "stall" and index == len(parts) // 2:
                self.stalled += 1
                await self.may_go_on.wait()
            if self.fault == "silent end" and index == len(parts) - 1:
                break
            padded = (
                part + b":" + b"x" * self.padding_bytes + b"\n\n"
                if self.padding_bytes and index < len(parts) - 1
                else part
            )
            await send({"type": "http.response.body", "body": padded, "more_body": True})
            self.sent_bytes += len(padded)
            await asyncio.sleep(self.token_delay_s)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Any, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def _says_start_first(seen: Seen) -> int:
    """Return how many events of a stream a node says before it needs KV."""
    if seen.params is None or not seen.params.start or not seen.body.get("stream"):
        return 0
    if seen.path in (MESSAGES, RESPONSES):
        return 1
    answers = seen.body.get("n") or 1
    return answers * (min(map(len, seen.params.start)) + ("chat" in seen.path))


async def _cancel_when_gone(receive: Any, seen: Seen, task: asyncio.Task[Any] | None) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not seen.finished and task is not None:
        seen.cancelled = True
        task.cancel()
