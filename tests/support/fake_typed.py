"""What a fake decode node answers on `/v1/messages` and `/v1/responses`: the same few tokens, in vLLM's shapes."""

import json
from collections.abc import Iterator
from typing import Any

from baton.contracts.http import TOKEN_COMMENT
from tests.support.fake_answers import FIRST_ID, MODEL, PROMPT_IDS, text_of

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


def typed_stream(path: str, tokens: int) -> Iterator[bytes]:
    """Yield a stream of named events."""
    yield from (_messages(tokens) if path == MESSAGES else _responses(tokens))


def typed_prefill_part() -> list[bytes]:
    """Return what a prefill node streams of messages: up to its first token, and an end that looks like an answer's."""
    first, *rest = list(_messages(1))
    return [TOKEN_COMMENT + b"%d\n\n" % FIRST_ID + first, *rest]


def typed_whole(path: str, tokens: int) -> bytes:
    """Return a whole answer."""
    text = "".join(text_of(at) for at in range(tokens))
    return json.dumps(_message(text, tokens) if path == MESSAGES else _response("completed", text, tokens)).encode()


def _messages(tokens: int) -> Iterator[bytes]:
    yield _event("message_start", message=_message("", 0))
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for at in range(tokens):
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text_of(at)})
    yield _event("content_block_stop", index=0)
    yield _event(
        "message_delta", delta={"stop_reason": "max_tokens"}, usage={"input_tokens": 3, "output_tokens": tokens}
    )
    yield _event("message_stop")


def _responses(tokens: int) -> Iterator[bytes]:
    yield _event("response.created", response=_response("in_progress", "", 0), sequence_number=0)
    for at in range(tokens):
        delta = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": text_of(at), "logprobs": []}
        yield _event("response.output_text.delta", **delta, sequence_number=at + 1)
    text = "".join(text_of(at) for at in range(tokens))
    yield _event("response.completed", response=_response("completed", text, tokens), sequence_number=tokens + 1)


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


def _response(status: str, text: str, tokens: int) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}
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
