"""The request that goes on with a stream that broke, and what its answer begins with that the client has already. Pure.

`clean` and `tail` are those of `record.py`. What the tail said has to come again; what it held back, nobody has seen.
"""

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

import msgspec

from baton.proxy.request.endpoints import CHAT, COMPLETIONS
from baton.proxy.request.fields import is_on
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume.events import DONE, END, Piece, encode, parse
from baton.proxy.resume.record import Record, TokenRecord
from baton.proxy.resume.rules import NotResumableReason, limit

# What shaped the prompt, whose token ids are given now, or is set anew.
_NOT_HANDED_ON: Final = frozenset(
    (
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "include_reasoning",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "min_tokens",
        "parallel_tool_calls",
        "prompt",
        "request_id",
        "tool_choice",
        "tools",
        "truncate_prompt_tokens",
        "truncation_side",
    )
)


class CannotFollowError(Exception):
    """The stream cannot be resumed."""

    def __init__(self, reason: NotResumableReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How to go on."""

    request: ClientRequest
    original: Piece  # the first event of the answer, whose name and shape are kept
    prompt_tokens: int = 0  # of the original prompt
    given_tokens: int = 0  # of the answer, given as part of the prompt
    repeated_ids: tuple[int, ...] = ()  # that will come again, and that the client has in some form
    repeated_text: str = ""
    empty_events: int = 0  # sent after that text
    ended: bool = False  # nothing but usage is missing
    text_offset: int = 0  # of log probabilities


def from_token_ids(request: ClientRequest, record: TokenRecord, turn: int) -> Continuation:
    """Go on after the last clean place.

    Raises:
        CannotFollowError: what was sent is not what can be gone on with.
    """
    original = _check(record)
    if request.endpoint == CHAT and not _is_text(request):
        raise CannotFollowError(NotResumableReason.MEDIA)
    tail = [parse(event) for event in record.tail]
    text = "".join(piece.text for piece in tail)
    tells = any(is_on(request.fields, name) for name in ("return_token_ids", "logprobs"))
    repeated = tuple(token for piece in tail for token in piece.ids) if text or tells else ()
    unseen = 0 if repeated else len(tail)
    if not repeated:
        record.rewind()
    given = [int(token) for token in bytes(record.ids[: record.clean_bytes]).split(b",")[:-1]]
    prompt = _prompt_ids(original)
    fields = _fields(request, prompt, given)
    return Continuation(
        request=replace(
            request,
            endpoint=COMPLETIONS,
            request_id=f"{request.request_id}-resumed-{turn}",
            fields=fields,
            prompt=memoryview(fields["prompt"]),
        ),
        original=original,
        prompt_tokens=len(prompt),
        given_tokens=len(given),
        repeated_ids=repeated,
        repeated_text=text,
        empty_events=unseen,
        text_offset=_next_offset(record.clean),
    )


def from_the_start(request: ClientRequest, record: Record, turn: int) -> Continuation:
    """Answer the same request again.

    Raises:
        CannotFollowError: what was sent cannot be compared with what will come.
    """
    original = _check(record)
    pieces = [parse(event) for event in record.tail]
    if not all(map(_is_plain, pieces)):
        raise CannotFollowError(NotResumableReason.NOT_PLAIN)
    return Continuation(
        request=replace(request, request_id=f"{request.request_id}-resumed-{turn}"),
        original=original,
        repeated_text="".join(piece.text for piece in pieces),
        empty_events=len(list(takewhile(_says_nothing, reversed(pieces)))),
        ended=pieces[-1].ends,
    )


def closing(request: ClientRequest, record: Record) -> bytes | None:
    """Return what is missing of an answer whose last token was sent, if that can be known without a node."""
    if not record.last or not parse(record.last).ends:
        return None
    options = msgspec.json.decode(request.fields.get("stream_options") or b"null") or {}
    if record.told_usage or not options.get("include_usage"):
        return DONE + END
    if not isinstance(record, TokenRecord) or record.lost is not None:
        return None
    original = parse(record.first)
    prompt, made = len(_prompt_ids(original)), record.ids.count(b",")
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
    named = {name: original.body[name] for name in ("id", "object", "created", "model")}
    return encode({**named, "choices": [], "usage": usage}) + DONE + END


def _check(record: Record) -> Piece:
    if record.lost is not None:
        raise CannotFollowError(record.lost)
    if not record.first:
        raise CannotFollowError(NotResumableReason.NOT_PLAIN)
    return parse(record.first)


def _fields(request: ClientRequest, prompt: list[int], given: list[int]) -> dict[str, msgspec.Raw]:
    fields = {name: value for name, value in request.fields.items() if name not in _NOT_HANDED_ON}
    most = limit(request)
    assert most is not None  # `rules.find_resume_strategy` asked for it
    least = msgspec.json.decode(request.fields.get("min_tokens") or b"0") or 0
    new: dict[str, Any] = {
        "prompt": prompt + given,
        "max_tokens": most - len(given),
        "min_tokens": max(0, least - len(given)),
        "return_token_ids": True,
    }
    if request.endpoint == COMPLETIONS and "logprobs" in request.fields:
        fields["logprobs"] = request.fields["logprobs"]
    return fields | {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in new.items()}


def _prompt_ids(original: Piece) -> list[int]:
    ids = original.body.get("prompt_token_ids") or (original.choice or {}).get("prompt_token_ids")
    if not ids:
        raise CannotFollowError(NotResumableReason.NO_TOKEN_IDS)
    return list(ids)


def _is_text(request: ClientRequest) -> bool:
    for message in msgspec.json.decode(request.fields["messages"]):
        content = message.get("content")
        if isinstance(content, list) and any(part.get("type", "text") != "text" for part in content):
            return False
    return True


def _is_plain(piece: Piece) -> bool:
    if piece.choice is None or piece.choice.get("logprobs") or piece.choice.get("index") != 0:
        return False
    return "delta" not in piece.choice or set(piece.choice["delta"]) <= {"role", "content"}


def _says_nothing(piece: Piece) -> bool:
    assert piece.choice is not None
    return not piece.text and "role" not in piece.choice.get("delta", ())


def _next_offset(clean: bytes) -> int:
    logprobs = (parse(clean).choice or {}).get("logprobs") if clean else None
    return logprobs["text_offset"][-1] + len(logprobs["tokens"][-1]) if logprobs else 0
