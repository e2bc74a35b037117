"""What a fake node answers on `/v1/messages` and `/v1/responses`: the same few tokens, in vLLM's shapes."""

import json
from collections.abc import Iterator
from typing import Any

from baton.contracts.http import TOKENS_COMMENT
from tests.support.fake_answers import FIRST_ID, MODEL, PROMPT_IDS, text_of

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


class TypedAnswer:
    """A stream of named events; `created` tells the nodes' own ids apart."""

    def __init__(self, path: str, body: dict[str, Any], tokens: int, created: int = 1, *, names: bool = False) -> None:
        self._path = path
        self._tokens = body.get("max_tokens") or body.get("max_output_tokens") or tokens
        self._response_id = body.get("request_id", f"resp_{created}")
        self._created = created
        self._names = names
        self._number = 0

    def stream(self) -> Iterator[bytes]:
        yield from (self._messages(self._tokens) if self._path == MESSAGES else self._responses(self._tokens))

    def prefill_part(self) -> list[bytes]:
        """Return what a prefill node streams: up to the first token, and an end that looks like an answer's."""
        return list(self._messages(1) if self._path == MESSAGES else self._responses(1))

    def _token(self, at: int) -> bytes:
        return TOKENS_COMMENT + b"0 %d\n" % (FIRST_ID + at) if self._names else b""

    def _messages(self, tokens: int) -> Iterator[bytes]:
        yield _event("message_start", message=_message("", 0))
        yield self._token(0) + _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for at in range(tokens):
            delta = {"type": "text_delta", "text": text_of(at)}
            yield self._token(at) * (at > 0) + _event("content_block_delta", index=0, delta=delta)
        yield _event("content_block_stop", index=0)
        usage = {"input_tokens": 3, "output_tokens": tokens}
        yield _event("message_delta", delta={"stop_reason": "max_tokens"}, usage=usage)
        yield _event("message_stop")

    def _responses(self, tokens: int) -> Iterator[bytes]:
        self._number = 0
        item, place = f"msg_{self._created}", {"output_index": 0, "content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": []}
        yield self._numbered("created", response=self._response("in_progress", "", 0))
        yield self._numbered("in_progress", response=self._response("in_progress", "", 0))
        added = {"id": item, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield self._token(0) + self._numbered("output_item.added", item=added, output_index=0)
        yield self._numbered("content_part.added", item_id=item, part=part, **place)
        for at in range(tokens):
            said = {"item_id": item, **place, "delta": text_of(at), "logprobs": []}
            yield self._token(at) * (at > 0) + self._numbered("output_text.delta", **said)
        text = "".join(text_of(at) for at in range(tokens))
        yield self._numbered("output_text.done", item_id=item, **place, text=text, logprobs=[])
        yield self._numbered("content_part.done", item_id=item, **place, part=part | {"text": text})
        done = added | {"status": "completed", "content": [part | {"text": text}]}
        yield self._numbered("output_item.done", item=done, output_index=0)
        yield self._numbered("completed", response=self._response("completed", text, tokens))

    def _numbered(self, kind: str, **fields: Any) -> bytes:
        event = _event(f"response.{kind}", **fields, sequence_number=self._number)
        self._number += 1
        return event

    def _response(self, status: str, text: str, tokens: int) -> dict[str, Any]:
        return {**_response(status, text, tokens, f"msg_{self._created}"), "id": self._response_id}


def typed_stream(path: str, tokens: int, **more: Any) -> Iterator[bytes]:
    return TypedAnswer(path, more, tokens).stream()


def typed_whole(path: str, tokens: int) -> bytes:
    text = "".join(text_of(at) for at in range(tokens))
    return json.dumps(_message(text, tokens) if path == MESSAGES else _response("completed", text, tokens)).encode()


def _message(text: str, tokens: int) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}] if text else [],
        "model": MODEL,
        "stop_reason": "max_tokens" if text else None,
        "usage": {"input_tokens": len(PROMPT_IDS), "output_tokens": tokens},
    }


def _response(status: str, text: str, tokens: int, item: str = "msg_1") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": item, "type": "message", "role": "assistant", "status": "completed", "content": content}
    made = len(PROMPT_IDS), tokens
    usage = {"input_tokens": made[0], "output_tokens": made[1], "total_tokens": sum(made)}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": status,
        "output": [message] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {**usage, **details} if text else None,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n".encode()
