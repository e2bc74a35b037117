"""An answer on its way to the client: what the client has of it, and which tokens it has, so that another node can go on. Pure.

A node names the tokens in comments, never later than an event holds their text (`TOKENS_COMMENT`). Of the first leg
events pass as they came; of a further one, which says everything again, what the client has is left out.

Most events differ from the one before in a piece of text alone. They are not parsed: what stands before and after the
piece is compared.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec

from baton.contracts.http import TOKENS_COMMENT
from baton.contracts.kv_transfer import MAX_START_CHOICES, MAX_START_TOKENS, Start
from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.resume.events import COMMENT, Splitter, encode, parse
from baton.proxy.resume.known import Key, Known, Text
from baton.proxy.resume.rules import CannotFollowError, NotResumableReason

_MAX_ID: Final = 1 << 31
_IS_ID: Final = re.compile(rb"\d{1,10}").fullmatch
_ARE_IDS: Final = re.compile(rb"\d{1,10}(?:,\d{1,10})*").fullmatch
_IS_CHOICE: Final = re.compile(rb"\d{1,5}").fullmatch
_FIRST_CHOICE: Final = TOKENS_COMMENT + b"0 "
_IDS_AT: Final = len(_FIRST_CHOICE)
_QUOTE: Final = b'"'
_ESCAPE: Final = b"\\"
_NO_EVENT: Final = b"\0"  # nothing begins with it
_NOT_VLLMS: Final = (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


class Dialect(Protocol):
    """What the events of an API say."""

    last_events: tuple[bytes, ...]  # beginnings of the events that a stream ends with
    failure_events: tuple[bytes, ...]  # of those that say that something has failed

    def is_last(self, event: bytes) -> bool:
        return event.startswith(self.last_events)

    def is_failure(self, event: bytes) -> bool:
        return event.startswith(self.failure_events)

    def failure_in(self, event: bytes) -> StreamBrokenError | None:
        """Return the node's failure; None if the client is at fault."""

    def ends_prefill_part(self, event: bytes) -> bool:
        """Whether a prefill node's part of the stream ends before this event."""

    def begin_leg(self, _is_further: bool, /) -> None:
        """A node's stream begins; `_is_further`: the client has part of the answer."""
        return

    def renamed(self) -> Mapping[str, str]:
        """Return ids that the leg has drawn, and those that the client has in their place, where events may pass as they come."""
        return {}

    def names_in(self, body: dict[str, Any]) -> dict[str, object]:
        """Return what each node's stream calls itself."""

    def opening_of(self, key: Key, /) -> bytes:
        """Return what stands before a piece of this text in an event."""
        return b'"%b":"' % str(key[-1]).encode()

    def take_new(self, body: dict[str, Any], known: Known) -> bool:
        """Take away what the client has; return whether anything is left."""


class AnswerRecord:
    """What a client has of one answer, over all its legs."""

    def __init__(self, dialect: Dialect, *, rewrites: bool = False, has_logprobs: bool = False) -> None:
        """`rewrites`: all events of a further leg have to be written again.

        `has_logprobs`: tokens come with log probabilities, which a node does not know of those that it starts with.
        """
        self.dialect = dialect
        self.done = False  # the stream's last event has passed
        # The node has said that it failed, or what follows differs from what the client has.
        self.broken: StreamBrokenError | CannotFollowError | None = None
        self.rewrites = rewrites
        self._has_logprobs = has_logprobs
        self._known = Known()
        self._ids: dict[int, bytearray] = {}  # of each choice, as the leg has named them: b"1,2,3,"
        self._ids_before: dict[int, bytes] = {}  # as legs before have, where that was more
        self._tokens = 0  # of the leg
        self._ids_known = bytearray()  # the first choice's, where more may be added unseen; empty: they may not
        self._lost: NotResumableReason | None = None  # why the ids are not known
        self._names: dict[str, object] = {}  # what the client's stream calls itself
        self._begin()

    def _begin(self) -> None:
        self._splitter = Splitter()
        self._is_further = not self._known.is_empty
        self._is_first_event = True
        self._replaced: list[tuple[bytes, bytes]] = []  # in events of this leg
        # What events begin and end with that hold a piece of `_text` and nothing else.
        self._head, self._tail, self._text = _NO_EVENT, _NO_EVENT, Text()

    def begin_leg(self) -> None:
        """A node's stream begins, with the answer's first event."""
        self.broken = None
        for choice, ids in self._ids.items():
            if len(ids) > len(self._ids_before.get(choice, b"")):
                self._ids_before[choice] = bytes(ids)
        if self._has_logprobs:
            self._ids_before = {choice: self._with_logprobs(choice, ids) for choice, ids in self._ids_before.items()}
        self._ids, self._tokens, self._ids_known = {}, 0, bytearray()
        self._known.begin_again()
        self._begin()

    def start(self) -> Start:
        """Return the ids of the answer's tokens, by choice; raise `CannotFollowError` if they are not known."""
        if self._lost is not None:
            raise CannotFollowError(self._lost)
        count = max((*self._ids, *self._ids_before), default=-1) + 1
        texts = [max(bytes(self._ids.get(at, b"")), self._ids_before.get(at, b""), key=len) for at in range(count)]
        if not texts and self._known.has_tokens:
            raise CannotFollowError(NotResumableReason.NO_TOKEN_IDS)
        if self._has_logprobs:
            texts = [self._with_logprobs(at, text) for at, text in enumerate(texts)]
        ids = tuple(tuple(map(int, text[:-1].split(b","))) if text else () for text in texts)
        if any(max(each, default=0) >= _MAX_ID for each in ids):
            raise CannotFollowError(NotResumableReason.NO_TOKEN_IDS)
        return ids if any(ids) else ()

    @property
    def can_start(self) -> bool:
        """Whether `start` has an answer, as far as can be told cheaply."""
        return self._lost is None and bool(self._ids or self._ids_before or not self._known.has_tokens)

    def _with_logprobs(self, choice: int, ids: bytes) -> bytes:
        """Return the ids of tokens whose log probabilities the client has: one may have been named whose event has not come."""
        count = self._known.count_of((choice, "logprobs"))
        if not count and self._known.has_pieces_of(choice):
            return ids  # its server sends none
        return b"".join(each + b"," for each in ids[:-1].split(b",")[:count])

    def reopen(self) -> None:
        """The answer does not end with what was said last."""
        self.done = False

    def go_on_with(self, splitter: Splitter) -> None:
        """Take over what has come of an event."""
        self._splitter = splitter

    def take(self, data: bytes) -> bytes:
        """Take some bytes of a leg; return those for the client, which are whole events up to a failure.

        Raises `CannotFollowError` if the answer differs from what the client has.
        """
        if (
            data.startswith(_FIRST_CHOICE)
            and self._ids_known
            and self._tokens < MAX_START_TOKENS
            and self._splitter.is_empty
        ):
            begin = data.find(b"\n") + 1
            ids = data[_IDS_AT : begin - 1]
            # The way of most events: one token's, with a piece of text.
            if data.startswith(self._head, begin) and data.endswith(self._tail) and _IS_ID(ids):
                piece, text = data[begin + len(self._head) : -len(self._tail)], self._text
                if piece and _QUOTE not in piece and _ESCAPE not in piece:
                    self._ids_known += ids
                    self._ids_known += b","
                    self._tokens += 1
                    text.length += len(piece) if piece.isascii() else len(piece.decode(errors="replace"))
                    text.checksum = crc32(piece, text.checksum)
                    event = data[begin:]
                    return self._renamed(event) if self._replaced else event
        return take_each(self.take_event, self._splitter.whole(data), self.break_off)

    def break_off(self, exc: CannotFollowError) -> None:
        """Take nothing more: what has come last differs from what the client has."""
        self.broken, self._head = exc, _NO_EVENT

    def take_event(self, event: bytes) -> bytes:
        """Take one event. This runs once a token."""
        if event.startswith(TOKENS_COMMENT):
            event = self.note_ids(event)
        if event.startswith(self._head) and event.endswith(self._tail) and self._take_piece(event):
            return self._renamed(event) if self._replaced else event
        return self._take_other(event)

    def note_ids(self, event: bytes) -> bytes:
        """Take from an event what names tokens; return the rest. `CannotFollowError`: the answer has other ones."""
        while event.startswith(TOKENS_COMMENT):
            line, _, event = event.partition(b"\n")
            if line.startswith(_FIRST_CHOICE):
                self._note(0, line[len(_FIRST_CHOICE) :])
            else:
                choice, _, ids = line[len(TOKENS_COMMENT) :].partition(b" ")
                self._note(int(choice) if _IS_CHOICE(choice) else MAX_START_CHOICES, ids)
        return event

    def _note(self, choice: int, ids: bytes) -> None:
        if self._lost is not None:
            return
        if not _ARE_IDS(ids) or choice >= MAX_START_CHOICES:
            self._lose(NotResumableReason.NO_TOKEN_IDS)
            return
        self._tokens += ids.count(b",") + 1
        if self._tokens > MAX_START_TOKENS:
            self._lose(NotResumableReason.TOO_LONG)
            return
        noted = self._ids.setdefault(choice, bytearray())
        noted += ids
        noted += b","
        if before := self._ids_before.get(choice):
            if not (before.startswith(noted) or noted.startswith(before)):
                del self._ids[choice]
                raise CannotFollowError(NotResumableReason.DIFFERS)
            if len(noted) < len(before):
                return
            del self._ids_before[choice]
        if choice == 0:
            self._ids_known = noted

    def _lose(self, reason: NotResumableReason) -> None:
        self._lost = reason
        self._ids_known = bytearray()
        self._ids.clear()
        self._ids_before.clear()

    def _take_piece(self, event: bytes) -> bool:
        """Take an event that begins and ends as those with a piece of a text do; return whether it holds nothing else."""
        piece, text = event[len(self._head) : -len(self._tail)], self._text
        if _ESCAPE in piece:
            try:
                text.add(msgspec.json.decode(_QUOTE + piece + _QUOTE, type=str))
            except (msgspec.DecodeError, UnicodeError):
                return False
            return True
        if _QUOTE in piece or not piece:
            return False
        text.length += len(piece) if piece.isascii() else len(piece.decode(errors="replace"))
        text.checksum = crc32(piece, text.checksum)
        return True

    def _take_other(self, event: bytes) -> bytes:
        if self.broken or not event.strip():
            return b""
        if event.startswith(COMMENT):
            return event
        if self.dialect.is_failure(event):
            return self._take_failure(event)
        if self.dialect.is_last(event):
            if self._known.misses_text:
                raise CannotFollowError(NotResumableReason.DIFFERS)
            self.done = True
        if b"data: {" not in event:
            return event
        try:
            return self._take_json(event)
        except _NOT_VLLMS as exc:
            if self._known.repeats:
                raise CannotFollowError(NotResumableReason.DIFFERS) from exc
            self._lose(NotResumableReason.NO_TOKEN_IDS)
            return event

    def _take_failure(self, event: bytes) -> bytes:
        try:
            self.broken = self.dialect.failure_in(event)
        except _NOT_VLLMS:
            self.broken = StreamBrokenError(FailureKind.PROTOCOL, "it sent an error that cannot be read")
        if self.broken is None and self._known.repeats:
            self.broken = StreamBrokenError(FailureKind.REFUSED, "another node would not go on")
        self._head = _NO_EVENT
        self.done = self.broken is None
        return b"" if self.broken else event

    def _take_json(self, event: bytes) -> bytes:
        body, known = parse(event), self._known
        if self._is_first_event:
            self._is_first_event = False
            self.dialect.begin_leg(self._is_further)
            self._take_names(self.dialect.names_in(body))
        known.touched.clear()
        is_written = known.repeats or (self.rewrites and self._is_further)
        is_new = self.dialect.take_new(body, known)
        if self._is_further:
            self._take_renamed(self.dialect.renamed())
        if is_written:
            return self._renamed(encode(body, event)) if is_new else b""
        if len(known.touched) == 1:
            self._learn(event, known.touched[0])
        return self._renamed(event)

    def _take_names(self, names: dict[str, object]) -> None:
        self._names = self._names or names
        for name, value in names.items():
            ours = self._names.get(name, value)
            if value != ours:
                self._replaced.append((_field(name, value), _field(name, ours)))

    def _take_renamed(self, pairs: Mapping[str, str]) -> None:
        for theirs, ours in pairs.items():
            pair = msgspec.json.encode(theirs), msgspec.json.encode(ours)
            if pair not in self._replaced:
                self._replaced.append(pair)

    def _renamed(self, event: bytes) -> bytes:
        for theirs, ours in self._replaced:
            event = event.replace(theirs, ours, 1)
        return event

    def _learn(self, event: bytes, key: Key) -> None:
        """Take an event as the example of those that hold a piece of one text."""
        if (text := self._known.text_of(key)) is None:
            return
        opening = self.dialect.opening_of(key)
        begin = event.find(opening) + len(opening)
        end = event.find(_QUOTE, begin)
        if begin >= len(opening) and _ESCAPE not in event[begin:end]:
            self._head, self._tail, self._text = event[:begin], event[end:], text


def take_each(
    take_event: Callable[[bytes], bytes], events: Sequence[bytes], break_off: Callable[[CannotFollowError], None]
) -> bytes:
    """Take some events. Of one that differs what stands before it is returned, and the answer is broken off."""
    if len(events) == 1:
        return take_event(events[0])
    passed: list[bytes] = []
    for event in events:
        try:
            passed.append(take_event(event))
        except CannotFollowError as exc:
            if not any(passed):
                raise
            break_off(exc)
            break
    return b"".join(passed)


def _field(name: str, value: object) -> bytes:
    return b'"%b":%b' % (name.encode(), msgspec.json.encode(value))
