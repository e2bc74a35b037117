"""What a fake decode node answers: the same few tokens each time, in vLLM's shapes, field by field and in its order.

Token `i` of every answer has the id `FIRST_ID + i`, and one that starts with tokens goes on after the last of them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from baton.contracts.http import TOKENS_COMMENT

MODEL = "fake-model"
PROMPT_IDS = (7, 8, 9)  # of every prompt that is given as text
FIRST_ID = 1000
FINGERPRINT = "vllm-fake"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    path: str
    prompt: Sequence[int] = PROMPT_IDS
    tokens: int = 3  # how many are made
    n: int = 1
    ids: bool = False  # `return_token_ids`
    usage: bool = False  # `stream_options.include_usage`
    created: int = 1
    drift: int = 0  # by how many tokens it differs
    start: Sequence[Sequence[int]] = ()  # ids that it starts with, by choice
    names: bool = False  # tokens are named to the proxy

    @property
    def chat(self) -> bool:
        return "chat" in self.path

    def token(self, choice: int, at: int) -> int:
        given = self.start[choice] if choice < len(self.start) else ()
        if at < len(given):
            return given[at]
        return given[-1] + 1 + at - len(given) if given else FIRST_ID + self.drift + at

    def name(self, choice: int, at: int) -> bytes:
        return TOKENS_COMMENT + b"%d %d\n" % (choice, self.token(choice, at)) if self.names else b""


def understand(path: str, body: dict[str, Any], tokens: int, created: int, drift: int) -> Asked:
    """Read a request; `tokens` is what a node makes if it is not told how many."""
    prompt = body.get("prompt")
    return Asked(
        path=path,
        prompt=prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], int) else PROMPT_IDS,
        tokens=body.get("max_completion_tokens") or body.get("max_tokens") or tokens,
        n=body.get("n") or 1,
        ids=bool(body.get("return_token_ids")),
        usage=bool((body.get("stream_options") or {}).get("include_usage")),
        created=created,
        drift=drift,
    )


def events(path: str, tokens: int, **more: Any) -> Iterator[bytes]:
    """Yield the stream that a decode node sends, one event at a time."""
    return stream(Asked(path=path, tokens=tokens, **more))


def answer(path: str, tokens: int, **more: Any) -> bytes:
    """Return the body that a decode node sends where no stream was asked for."""
    return whole(Asked(path=path, tokens=tokens, **more))


def stream(asked: Asked) -> Iterator[bytes]:
    """Yield a stream, choice by choice, token by token."""
    if asked.chat:
        for choice in range(asked.n):
            delta = {"role": "assistant", "content": ""}
            first = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
            ids = {"prompt_token_ids": list(asked.prompt) if asked.ids else None, "prompt_text": None}
            yield _event({**_head(asked), "choices": [first], **ids})
    for at in range(asked.tokens):
        for choice in range(asked.n):
            yield asked.name(choice, at) + _event(_chunk(asked, choice, at))
    if asked.usage:
        yield _event({**_head(asked), "choices": [], "usage": _usage(asked), "system_fingerprint": FINGERPRINT})
    yield b"data: [DONE]\n\n"


def prefill_part(asked: Asked) -> list[bytes]:
    """Return what a prefill node streams of an answer: up to its first token, and an end of its own unless the answer has ended."""
    if asked.tokens == 1:
        return list(stream(asked))
    said = list(stream(replace(asked, names=True)))[: asked.n * (2 if asked.chat else 1)]
    nothing: dict[str, Any] = {"delta": {}} if asked.chat else {"text": ""}
    end = {**nothing, "logprobs": None, "finish_reason": "abort"}
    ends = [_event({**_head(asked), "choices": [{"index": choice, **end}]}) for choice in range(asked.n)]
    return [*said, *ends, b"data: [DONE]\n\n"]


def whole(asked: Asked) -> bytes:
    text = "".join(text_of(asked.token(0, at) - FIRST_ID) for at in range(asked.tokens))
    said = {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
    choices = [{"index": choice, **said, "finish_reason": "length"} for choice in range(asked.n)]
    kind = "chat.completion" if asked.chat else "text_completion"
    return _json({**_head(asked), "object": kind, "choices": choices, "usage": _usage(asked)})


def text_of(index: int) -> str:
    """Return one token's text, two bytes of UTF-8 in it."""
    return f" wörd{index}"


def _chunk(asked: Asked, choice: int, at: int) -> dict[str, Any]:
    index, last = asked.token(choice, at) - FIRST_ID, at == asked.tokens - 1
    ids = [FIRST_ID + index] if asked.ids else None
    reason: dict[str, Any] = {"logprobs": None, "finish_reason": "length" if last else None}
    if asked.chat:
        stop = {"stop_reason": None} if last else {}
        said = {"index": choice, "delta": {"content": text_of(index)}, **reason, **stop, "token_ids": ids}
    else:
        prompt = list(asked.prompt) if asked.ids and at == 0 else None
        reason |= {"stop_reason": None, "prompt_token_ids": prompt, "token_ids": ids}
        said = {"index": choice, "text": text_of(index), **reason}
    mark = {"system_fingerprint": FINGERPRINT} if last and not asked.usage else {}
    return {**_head(asked), "choices": [said], **mark}


def _head(asked: Asked) -> dict[str, Any]:
    kind = "chat.completion.chunk" if asked.chat else "text_completion"
    name = f"{'chatcmpl' if asked.chat else 'cmpl'}-{asked.created}"
    return {"id": name, "object": kind, "created": asked.created, "model": MODEL}


def _usage(asked: Asked) -> dict[str, Any]:
    made = asked.tokens * asked.n
    counts = {"prompt_tokens": len(asked.prompt), "total_tokens": len(asked.prompt) + made, "completion_tokens": made}
    return {**counts, "prompt_tokens_details": {"cached_tokens": 0}}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
