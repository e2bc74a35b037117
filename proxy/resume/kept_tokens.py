"""The tokens of an answer that is not streamed, kept while it is made: if its node fails, another one starts with them. Pure."""

import re
from typing import Any, Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import ANSWER_COMMENT, TOKENS_COMMENT
from baton.contracts.kv_transfer import Start
from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.connection import MAX_HEAD_BYTES
from baton.proxy.resume.chat_events import ChatEvents
from baton.proxy.resume.record import AnswerRecord
from baton.proxy.resume.rules import CannotFollowError

_LINE_END: Final = b"\n"
_MOST_BYTES: Final = 1 << 20  # of a line
_IS_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_IS_TEXT: Final = re.compile(r"[ -~\x80-\xff\t]*").fullmatch  # no line's end


class Head(msgspec.Struct, frozen=True):
    """Status and headers of the answer itself."""

    status: int
    headers: list[tuple[str, str]]


class KeptTokens:
    """The tokens of one request's answer, over all its legs."""

    def __init__(self) -> None:
        self.lines = 0  # that have named tokens
        self.is_answered = False  # the node has begun to send the answer
        self._record: Any = AnswerRecord(ChatEvents())
        self._part = b""

    def begin_leg(self) -> None:
        self._record.begin_leg()
        self._part, self.is_answered = b"", False

    def take(self, data: bytes) -> tuple[Head, bytes] | None:
        """Take some bytes; return the answer's head and the beginning of its body, once they are there.

        Raises an `UpstreamError` if they name no tokens, or other ones than the node before.
        """
        *lines, self._part = (self._part + data).split(_LINE_END)
        if len(self._part) > _MOST_BYTES and not any(line.startswith(ANSWER_COMMENT) for line in lines):
            raise UpstreamError(FailureKind.PROTOCOL, "it sends a line without an end")
        for at, line in enumerate(lines):
            if line.startswith(ANSWER_COMMENT):
                self.is_answered = True
                body = _LINE_END.join([*lines[at + 1 :], self._part])
                return _head_in(line.removeprefix(ANSWER_COMMENT)), body
            if not line.startswith(TOKENS_COMMENT):
                raise UpstreamError(FailureKind.PROTOCOL, "it names no tokens")
            try:
                self._record.note_ids(line + _LINE_END)
            except CannotFollowError as exc:
                raise UpstreamError(
                    FailureKind.PROTOCOL, "it has not started with the tokens that it was given"
                ) from exc
            self.lines += 1
        return None

    @property
    def can_start(self) -> bool:
        """Whether `start` has tokens, as far as can be told cheaply."""
        return bool(self.lines and self._record.can_start)

    def start(self) -> Start:
        """Return the ids of the answer's tokens, by choice; nothing if they are not known."""
        try:
            ids: Start = self._record.start()
        except CannotFollowError:
            return ()
        return ids


def _head_in(line: bytes) -> Head:
    try:
        if len(line) > MAX_HEAD_BYTES:
            raise UpstreamError(FailureKind.PROTOCOL, "its answer's head is too long")
        head = msgspec.json.decode(line, type=Head)
    except DECODE_ERRORS as exc:
        raise UpstreamError(FailureKind.PROTOCOL, "its answer has no head") from exc
    if not 200 <= head.status < 600 or not all(_IS_NAME(name) and _IS_TEXT(text) for name, text in head.headers):
        raise UpstreamError(FailureKind.PROTOCOL, "its answer's head is none of HTTP's")
    return head
