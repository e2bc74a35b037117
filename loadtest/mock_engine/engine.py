"""The mock itself: which request gets which answer, and when."""

import secrets
from dataclasses import asdict, replace
from typing import Any, Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import CANCEL_PATH, MAX_CANCELLED, NODE_PATH, TOKEN_IDS_HEADER, error_body
from baton.contracts.kv_transfer import is_transfer_id
from baton.contracts.node_info import NodeInfo, NodeLoad
from baton.contracts.secret import ClusterSecret
from baton.loadtest.mock_engine import rules
from baton.loadtest.mock_engine.answers import STREAM_HEAD, Chunks, chunks, generated, prefill_part, whole
from baton.loadtest.mock_engine.connection import Connection, Request
from baton.loadtest.mock_engine.rules import CHAT, COMPLETIONS, SGLANG_ROOM, Asked, Baton, RefusedError, Vllm
from baton.loadtest.mock_engine.settings import MODEL, Counts, Fault, FaultSetting, Settings
from baton.loadtest.mock_engine.wheel import Due, Ticker

COUNTS_PATH: Final = "/mock/counts"
FAULT_PATH: Final = "/mock/fault"
_NOT_FOUND: Final = whole(404, {"detail": "Not Found"})
_MODEL: Final = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 1 << 17}


def stream(line: Connection, pieces: Chunks, *, tokens: int, itl_s: float, fault: FaultSetting, counts: Counts) -> Due:
    """Write one stream, token by token; yield in how many seconds the next one is due."""
    broken_at = min(fault.after_tokens, tokens - 1) if fault.fault in (Fault.CUT, Fault.STALL) else tokens
    for sent in range(broken_at):
        counts.chunks += 1
        if sent == tokens - 1:
            line.write(STREAM_HEAD + pieces.only if tokens == 1 else pieces.last)
            line.end()
            return
        line.write(pieces.middle if sent else STREAM_HEAD + pieces.first)
        yield itl_s
    if fault.fault is Fault.CUT:
        line.close()


def whole_answer(line: Connection, response: bytes, fault: Fault) -> Due:
    """Write one answer that is no stream, at once."""
    yield from ()
    if fault is Fault.CUT:
        line.write(response[: len(response) // 2])
        line.close()
    elif fault is not Fault.STALL:
        line.write(whole(200, b"") if fault is Fault.EMPTY else response)
        line.end()


class MockEngine:
    """A prefill or decode node that computes nothing."""

    def __init__(self, settings: Settings, ticker: Ticker, secret: ClusterSecret | None, port: int) -> None:
        self._settings = settings
        self._ticker = ticker
        self._secret = secret
        self._dialect: Vllm | Baton = Vllm(settings.role) if secret is None else Baton(settings.role, secret)
        self._info: NodeInfo | None = None if secret is None else rules.describe(settings.role, port)
        self._fault = settings.fault
        self._faults_left = settings.fault.times
        self._running: dict[int, int] = {}  # bytes of the bodies of requests under way, by their answers' identity
        self.counts = Counts()

    def serve(self, request: Request, line: Connection) -> None:
        if request.path in (COMPLETIONS, CHAT) and request.method == b"POST":
            self._generate(request, line)
            return
        line.write(self._small(request))
        line.end()

    def lost(self, answer: Due) -> None:
        self.counts.cancelled += 1
        self._running.pop(id(answer), None)
        answer.close()

    def _generate(self, request: Request, line: Connection) -> None:
        counts = self.counts
        counts.requests += 1
        try:
            asked = rules.understand(
                request.path, request.headers.get("content-type", ""), request.body, self._settings.tokens
            )
            is_handed_over = self._dialect.judge(asked, list(request.headers))
        except RefusedError as exc:
            counts.refused += 1
            line.write(whole(exc.status, error_body(str(exc), code=exc.status)))
            line.end()
            return
        if is_handed_over:
            counts.handed_over += 1
        else:
            counts.alone += 1
        if SGLANG_ROOM in asked.body and self._settings.role == "prefill":
            asked = replace(asked, tokens=1)  # as SGLang's prefill servers do, whatever was asked
        fault = self._next_fault()
        if fault.fault is Fault.DROP:
            line.drop()
            return
        if fault.fault is Fault.STATUS:
            error = error_body("a fault was asked for", kind="InternalServerError", code=fault.status)
            line.write(whole(fault.status, error))
            line.end()
            return
        names = TOKEN_IDS_HEADER in request.headers
        self._begin(asked, fault, line, len(request.body), names=names)

    def _begin(self, asked: Asked, fault: FaultSetting, line: Connection, body_bytes: int, *, names: bool) -> None:
        settings = self._settings
        delay_s = settings.ttft_s
        if asked.stream and fault.fault is not Fault.EMPTY:
            usage = (asked.prompt_tokens, asked.tokens) if asked.usage else None
            prompt_ids = asked.prompt_tokens if asked.token_ids else None
            pieces = chunks(
                chat=asked.chat, prompt_ids=prompt_ids, usage=usage, event_bytes=settings.chunk_bytes, names=names
            )
            tokens, itl_s = asked.tokens, settings.itl_s
            if rules.relays(asked) and tokens > 1:
                pieces = prefill_part(chat=asked.chat, prompt_ids=prompt_ids, event_bytes=settings.chunk_bytes)
                tokens = 2  # the second is the end of its part
            answer = stream(line, pieces, tokens=tokens, itl_s=itl_s, fault=fault, counts=self.counts)
        else:
            told = self._dialect.told(asked, f"cmpl-{secrets.token_hex(16)}")
            answer = whole_answer(line, generated(asked, told), fault.fault)
            delay_s += (asked.tokens - 1) * settings.itl_s
        line.answer = answer
        self._running[id(answer)] = body_bytes
        self._ticker.after(delay_s, answer)

    def ended(self, answer: Due, *, complete: bool) -> None:
        self.counts.completed += complete
        self._running.pop(id(answer), None)

    def _next_fault(self) -> FaultSetting:
        fault = self._fault
        if fault.fault is Fault.NONE:
            return fault
        self.counts.faulted += 1
        if self._faults_left:
            self._faults_left -= 1
            if not self._faults_left:
                self._fault = FaultSetting()
        return fault

    def _small(self, request: Request) -> bytes:
        match request.method, request.path:
            case b"GET", "/health":
                return whole(200, b"")
            case b"GET", "/v1/models":
                return whole(200, {"object": "list", "data": [_MODEL]})
            case b"GET", "/version":
                return whole(200, {"version": "mock"})
            case b"GET", path if path == COUNTS_PATH:
                return whole(200, asdict(self.counts))
            case b"POST", path if path == FAULT_PATH:
                return self._change_fault(request.body)
            case method, (str() as path) if (method, path) in ((b"GET", NODE_PATH), (b"POST", CANCEL_PATH)):
                return self._node_api(request)
        return _NOT_FOUND

    def _change_fault(self, body: bytes) -> bytes:
        try:
            self._fault = msgspec.json.decode(body, type=FaultSetting)
        except DECODE_ERRORS as exc:
            return whole(400, error_body(f"no fault: {exc}", code=400))
        self._faults_left = self._fault.times
        return whole(200, {})

    def _node_api(self, request: Request) -> bytes:
        if self._secret is None or self._info is None:
            return _NOT_FOUND
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not self._secret.accepts_node_token(token.encode()):
            return whole(401, {"error": "Unauthorized"})
        if request.path == CANCEL_PATH:
            return self._cancel(request.body)
        load = NodeLoad(requests=len(self._running), prompt_bytes=sum(self._running.values()))
        return whole(200, msgspec.to_builtins(msgspec.structs.replace(self._info, load=load)))

    def _cancel(self, body: bytes) -> bytes:
        try:
            ids: Any = msgspec.json.decode(body)["transfer_ids"]
        except (*DECODE_ERRORS, KeyError, TypeError):
            ids = None
        if not isinstance(ids, list) or not 0 < len(ids) <= MAX_CANCELLED or not all(map(is_transfer_id, ids)):
            return whole(400, {"error": "not a list of transfer ids"})
        self.counts.cancels += len(ids)
        return whole(200, {})
