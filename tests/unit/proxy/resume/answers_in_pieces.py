"""One answer as a stream of each kind, its tokens said in any groups by any node; and records of it."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from baton.contracts.http import TOKENS_COMMENT
from baton.proxy.resume.chat_events import ChatEvents
from baton.proxy.resume.message_events import MessageEvents
from baton.proxy.resume.record import AnswerRecord
from baton.proxy.resume.response_events import ResponseEvents
from baton.proxy.resume.short_record import ShortRecord
from tests.support.fake_typed import TypedAnswer

WORDS = [" plain", ' "quoted', '",', " café", "", " 漢字", "\n\\", "}", " end"]
Groups = Sequence[Sequence[int]]
ONE_BY_ONE = [[at] for at in range(len(WORDS))]
DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named(choice: int, at: Sequence[int]) -> bytes:
    return TOKENS_COMMENT + b"%d %b\n" % (choice, ",".join(map(str, at)).encode())


def chat(groups: Groups, node: int, say: Callable[[str, int], dict[str, Any]], n: int = 1) -> Iterator[bytes]:
    """A chat's stream; `say` makes the delta of a piece of text that begins with this token."""
    head = {"id": f"chatcmpl-{node}", "object": "chat.completion.chunk", "created": 10 + node, "model": "m"}
    for choice in range(n):
        role = {"index": choice, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        yield event({**head, "choices": [role]})
    for group in groups:
        for choice in range(n):
            text, last = "".join(WORDS[at] for at in group), group[-1] == len(WORDS) - 1
            told = {"index": choice, "delta": say(text, group[0]), "finish_reason": "stop" if last else None}
            yield named(choice, group) + event({**head, "choices": [told]})
    yield event({**head, "choices": [], "usage": {"completion_tokens": len(WORDS)}})
    yield DONE


def unnamed(stream: bytes) -> bytes:
    return b"".join(line for line in stream.splitlines(keepends=True) if not line.startswith(TOKENS_COMMENT))


def call_of(text: str, at: int) -> dict[str, Any]:
    """A tool call's id is drawn by each node."""
    function: dict[str, Any] = {"arguments": text}
    call: dict[str, Any] = {"index": 0, "function": function}
    if at == 0:
        call |= {"id": f"call-{random.random()}", "type": "function"}
        function["name"] = "look"
    return {"tool_calls": [call]}


def completion(groups: Groups, node: int) -> Iterator[bytes]:
    """A completion's stream, with ids and log probabilities."""
    head = {"id": f"cmpl-{node}", "object": "text_completion", "created": 10 + node, "model": "m"}
    for group in groups:
        lists = {"tokens": [WORDS[at] for at in group], "token_logprobs": [-1.0 * at for at in group]}
        said = {"text": "".join(WORDS[at] for at in group), "logprobs": lists, "token_ids": list(group)}
        prompt = {"prompt_token_ids": [7] if group[0] == 0 else None}
        last = "length" if group[-1] == len(WORDS) - 1 else None
        yield named(0, group) + event({**head, "choices": [{"index": 0, **said, **prompt, "finish_reason": last}]})
    yield DONE


def typed(path: str, node: int) -> Iterator[bytes]:
    return TypedAnswer(path, {"request_id": "resp_r"}, len(WORDS), node, names=True).stream()


KINDS: dict[str, Callable[[Groups, int], Iterator[bytes]]] = {
    "chat": lambda groups, node: chat(groups, node, lambda text, _: {"content": text}),
    "several": lambda groups, node: chat(groups, node, lambda text, _: {"content": text}, n=3),
    "reasoning": lambda groups, node: chat(groups, node, lambda text, at: {"reasoning" if at < 4 else "content": text}),
    "tool": lambda groups, node: chat(groups, node, call_of),
    "completion": completion,
    "message": lambda _, node: typed("/v1/messages", node),
    "response": lambda _, node: typed("/v1/responses", node),
}
DIALECTS: dict[str, type] = {"message": MessageEvents, "response": ResponseEvents}
AnyRecord = AnswerRecord | ShortRecord


def record_of(kind: str, *, is_short: bool = False) -> AnyRecord:
    made = ShortRecord if is_short else AnswerRecord
    return made(cast("Any", DIALECTS.get(kind, ChatEvents)()), rewrites=kind == "response")


def begun(count: int = 3) -> AnyRecord:
    """A chat of which so many events have come, and a further leg begins."""
    record = record_of("chat")
    for one in list(KINDS["chat"](ONE_BY_ONE, 1))[:count]:
        record.take_event(one)
    record.begin_leg()
    return record
