"""The tokens of an answer that is not streamed, kept while it is made: if its node fails, another one starts with them. Pure."""

from typing import Any, Final

import msgspec

from baton.contracts.http import ANSWER_COMMENT, TOKENS_COMMENT
from baton.contracts.kv_transfer import Start
from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.resume.chat_events import ChatEvents
from baton.proxy.resume.record import AnswerRecord
from baton.proxy.resume.rules import CannotFollowError

_LINE_END: Final = b"\n"


class Head(msgspec.Struct, frozen=True):
    """Status and headers of the answer itself."""

    status: int
    headers: list[tuple[str, str]]


class KeptTokens:
    """Of one request, over all its legs."""

    def __init__(self) -> None:
        self._record: Any = AnswerRecord(ChatEvents())
        self._part = b""

    def begin_leg(self) -> None:
        """A node begins to name the answer's tokens, from the first one on."""
        self._record.begin_leg()
        self._part = b""

    def take(self, data: bytes) -> tuple[Head, bytes] | None:
        """Take some bytes; return the answer's head and the beginning of its body, once they are there.

        Raises:
            UpstreamError: they name no tokens, or other ones than the node before.
        """
        *lines, self._part = (self._part + data).split(_LINE_END)
        for at, line in enumerate(lines):
            if line.startswith(ANSWER_COMMENT):
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
        return None

    def start(self) -> Start:
        """Return the ids of the answer's tokens, by choice; nothing if they are not known."""
        try:
            ids: Start = self._record.start()
        except CannotFollowError:
            return ()
        return ids


def _head_in(line: bytes) -> Head:
    try:
        return msgspec.json.decode(line, type=Head)
    except msgspec.DecodeError as exc:
        raise UpstreamError(FailureKind.PROTOCOL, "its answer has no head") from exc
