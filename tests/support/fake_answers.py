"""What a fake decode node answers: the same few tokens each time, in vLLM's shapes."""

import json
from collections.abc import Iterator
from typing import Any

MODEL = "fake-model"


def events(path: str, tokens: int) -> Iterator[bytes]:
    """Yield the stream that a decode node sends, one event at a time."""
    for index in range(tokens):
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if index == tokens - 1 else None}
        choice |= {"delta": {"content": text_of(index)}} if "chat" in path else {"text": text_of(index)}
        kind = "chat.completion.chunk" if "chat" in path else "text_completion"
        chunk = {"id": "cmpl-1", "object": kind, "created": 1, "model": MODEL, "choices": [choice]}
        yield b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def answer(path: str, tokens: int) -> bytes:
    """Return the body that a decode node sends where no stream was asked for."""
    text = "".join(map(text_of, range(tokens)))
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if "chat" in path else {"text": text}
    kind = "chat.completion" if "chat" in path else "text_completion"
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    body = {"id": "cmpl-1", "object": kind, "created": 1, "model": MODEL, "choices": [choice], "usage": usage}
    return json.dumps(body, ensure_ascii=False).encode()


def text_of(index: int) -> str:
    """Return one token's text, two bytes of UTF-8 in it."""
    return f" wörd{index}"
