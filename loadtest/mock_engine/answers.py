"""The bytes of answers. Those of streams are made once for each shape: no JSON is written while a stream runs."""

from functools import lru_cache
from typing import Any, Final

import msgspec

from baton.contracts.http import TOKENS_COMMENT
from baton.loadtest.errors import UsageError
from baton.loadtest.mock_engine.rules import Asked
from baton.loadtest.mock_engine.settings import MODEL

TEXT: Final = " token"
TOKEN_ID: Final = 7
DONE: Final = b"data: [DONE]\n\n"
_NAME: Final = TOKENS_COMMENT + b"0 %d\n" % TOKEN_ID
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
END_OF_CHUNKS: Final = b"0\r\n\r\n"
_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    503: b"Service Unavailable",
}
_encode: Final = msgspec.json.Encoder().encode


class Chunks(msgspec.Struct, frozen=True):
    """A stream's pieces as they are written: each one is what an engine's step sends."""

    first: bytes
    middle: bytes
    last: bytes  # the last token with its reason, `[DONE]` and the end of the body
    only: bytes  # the same where the first token is the last


def whole(status: int, value: Any) -> bytes:
    """Return a whole response; bytes are sent as they are."""
    body = value if isinstance(value, bytes) else _encode(value)
    head = b"HTTP/1.1 %d %s\r\nserver: mock\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, _REASONS.get(status, b"Status"), len(body)) + body


def generated(asked: Asked, params: dict[str, Any] | None) -> bytes:
    text = TEXT * asked.tokens
    said = {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
    ids = [TOKEN_ID] * asked.tokens if asked.token_ids else None
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": "length", "stop_reason": None, "token_ids": ids}
    body = {**_head(asked.chat, chunk=False), "choices": [choice], "usage": _usage(asked.prompt_tokens, asked.tokens)}
    return whole(200, {**body, "kv_transfer_params": params})


@lru_cache(maxsize=64)
def chunks(
    *, chat: bool, prompt_ids: int | None, usage: tuple[int, int] | None, event_bytes: int, names: bool = False
) -> Chunks:
    """Return the pieces of a stream; `prompt_ids` (their number) and `usage` (tokens in and out) if they are to be told.

    `names`: tokens are named to the proxy. Raises `UsageError`: an event has more than `event_bytes` (0: as it comes)
    without any padding.
    """
    name = _NAME if names else b""
    first, only = (name + _opening(chat, prompt_ids, reason, event_bytes) for reason in (None, "length"))
    middle, last = (name + _event(chat, prompt_ids is not None, reason, event_bytes) for reason in (None, "length"))
    tail = _last_events(chat, usage)
    return Chunks(
        first=_chunk(first),
        middle=_chunk(middle),
        last=_chunk(last + tail) + END_OF_CHUNKS,
        only=_chunk(only + tail) + END_OF_CHUNKS,
    )


@lru_cache(maxsize=64)
def prefill_part(*, chat: bool, prompt_ids: int | None, event_bytes: int) -> Chunks:
    """Return the pieces of a prefill node's part of a stream: its token, named for the proxy, and an end of its own."""
    first = _chunk(_NAME + _opening(chat, prompt_ids, None, event_bytes))
    last = _chunk(_event(chat, prompt_ids is not None, "abort", 0) + DONE) + END_OF_CHUNKS
    return Chunks(first=first, middle=b"", last=last, only=last)


def _last_events(chat: bool, usage: tuple[int, int] | None) -> bytes:
    if usage is None:
        return DONE
    return b"data: " + _encode({**_head(chat), "choices": [], "usage": _usage(*usage)}) + b"\n\n" + DONE


def _opening(chat: bool, prompt_ids: int | None, reason: str | None, event_bytes: int) -> bytes:
    """Return the first token's event; a chat's stands behind one that carries the role and the prompt's ids."""
    ids = None if prompt_ids is None else [TOKEN_ID] * prompt_ids
    if not chat:
        return _event(chat, ids is not None, reason, event_bytes, ids)
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    role = {**_head(chat), "choices": [choice], "prompt_token_ids": ids}
    return b"data: " + _encode(role) + b"\n\n" + _event(chat, ids is not None, reason, event_bytes)


def _event(chat: bool, ids: bool, reason: str | None, event_bytes: int, prompt_ids: list[int] | None = None) -> bytes:
    """Return one token's event, its fields in vLLM's order."""

    def made(text: str) -> bytes:
        said: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        if not chat:
            choice |= {"stop_reason": None, "prompt_token_ids": prompt_ids}
        choice["token_ids"] = [TOKEN_ID] if ids else None
        return b"data: " + _encode({**_head(chat), "choices": [choice]}) + b"\n\n"

    plain = made(TEXT)
    if not event_bytes:
        return plain
    if len(plain) > event_bytes:
        raise UsageError(f"an event has {len(plain)} bytes: --chunk-bytes {event_bytes} is too small")
    return made(TEXT + "x" * (event_bytes - len(plain)))


def _head(chat: bool, *, chunk: bool = True) -> dict[str, Any]:
    """Return what every answer, or chunk of one, begins with."""
    kind = "text_completion" if not chat else "chat.completion.chunk" if chunk else "chat.completion"
    return {"id": "chatcmpl-mock" if chat else "cmpl-mock", "object": kind, "created": 1, "model": MODEL}


def _usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + tokens, "completion_tokens": tokens}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
