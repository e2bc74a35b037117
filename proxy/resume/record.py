"""What a client has of a stream, remembered so cheaply that every stream can be.

To go on from token ids the decode node is asked for them. The client did not ask: they are cut out again, on bytes, so
that it gets exactly what it would have got (`"token_ids":null`). The text `token_ids":[` cannot stand inside of a JSON
string, where the quote would be escaped.

A *clean* place is the end of an event that holds one token and some text: there the node's detokeniser holds nothing
back. An answer is only gone on with from a clean place; events after it are kept whole, and what they said has to come
again. Ids take about five bytes a token; whole events are bounded by `MAX_BYTES`.
"""

from typing import Final

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.resume.events import COMMENT, DONE, ERROR, Splitter, parse
from baton.proxy.resume.rules import NotResumableReason

MAX_BYTES: Final = 1 << 20  # of whole events, per stream
_PROMPT_KEY: Final = b'"prompt_token_ids":['
_KEY: Final = b'token_ids":['
_UNKNOWN: Final = b"\0"  # no event begins with it
_QUOTE: Final = ord('"')
_NO_CHOICES: Final = b'"choices":[]'
_USAGE: Final = b'"usage":{'
_NOTHING_SAID: Final = b'"delta":{},'  # with the next, an event that is sent for the sake of its ids alone
_NO_END: Final = b'"finish_reason":null'


class Record:
    """What both ways of remembering share."""

    def __init__(self) -> None:
        self.first = b""  # the first event, as it came
        self.last = b""  # the last event that said something, as it came
        self.told_usage = False  # the event that holds nothing but usage has passed: only the end can follow
        self.done = False  # the stream's last event has passed
        self.lost: NotResumableReason | None = None  # why it cannot be resumed after all
        self.broken: StreamBrokenError | None = None  # the node said that it failed
        self.tail: list[bytes] = []  # events since the last clean place
        self._tail_bytes = 0
        self._splitter = Splitter()

    def take(self, data: bytes) -> bytes:
        """Remember some bytes; return those for the client, which are whole events up to a break."""
        events = self._splitter.whole(data)
        return self.pass_on(events[0]) if len(events) == 1 else b"".join(map(self.pass_on, events))

    def restart(self) -> None:
        """Forget half an event, the rest of which will not come, and the break."""
        self._splitter = Splitter()
        self.broken = None

    def pass_on(self, event: bytes) -> bytes:
        """Remember one event; return it as the client gets it. This runs once a token."""
        raise NotImplementedError

    def _keep(self, event: bytes) -> None:
        self.tail.append(event)
        self._tail_bytes += len(event)
        if self._tail_bytes > MAX_BYTES:
            self.lost = NotResumableReason.TOO_LONG
            self._drop()

    def _drop(self) -> None:
        self.tail.clear()
        self._tail_bytes = 0

    def _note_special(self, event: bytes) -> bool:
        """Look at an event that may say nothing; return whether that is so."""
        if event.startswith(COMMENT):
            return True
        if event.startswith(DONE):
            self.done = self.broken is None
        elif event.startswith(ERROR):
            self.broken = nodes_own_error(event)
        elif _NO_CHOICES in event:
            self.told_usage = _USAGE in event
        else:
            return False
        return True


class TokenRecord(Record):
    """Remembers token ids."""

    def __init__(self, *, chat: bool, hides: bool) -> None:
        super().__init__()
        self.ids = bytearray()  # of everything that was sent: b"1,2,3,"
        self.clean_bytes = 0  # how much of `ids` lies before the last clean place
        self.clean = b""  # the event that ends there
        self._hides = hides
        self._chat = chat
        self._opening = b'"delta":{"content":"' if chat else b'"text":"'  # of the text
        self._head = _UNKNOWN  # what every event of this stream begins with, up to its text

    def pass_on(self, event: bytes) -> bytes:
        """Remember the ids of one event, and hide them."""
        at = event.rfind(_KEY)
        if at < 0:
            if not self._note_special(event):
                self.lost = NotResumableReason.NO_TOKEN_IDS
            return b"" if self.broken else event
        if not self.first:
            return self._begin(event)
        at += len(_KEY)
        end = event.find(b"]", at)
        ids = event[at:end]
        self.last = event
        self.ids += ids
        self.ids += b","
        if event.startswith(self._head) and ids.isdigit() and event[len(self._head)] != _QUOTE:
            self.clean_bytes, self.clean = len(self.ids), event
            if self.tail:
                self._drop()
        else:
            self._note_other(event, ids)
            if self._hides and _NOTHING_SAID in event and _NO_END in event:
                return b""
        return event[: at - 1] + b"null" + event[end + 1 :] if self._hides else event

    def rewind(self) -> None:
        """Forget what came after the last clean place: it will come again, and nobody has seen it."""
        del self.ids[self.clean_bytes :]
        self._drop()

    def _begin(self, event: bytes) -> bytes:
        """Take the first event, which holds the prompt's ids and, of a completion, the first token's."""
        self.first = event
        before, key, after = event.partition(_PROMPT_KEY)
        if not key:
            self.lost = NotResumableReason.NO_TOKEN_IDS
            return self.pass_on(event)
        hidden = before + key[:-1] + b"null" + after.partition(b"]")[2]
        passed = hidden if self._chat else self.pass_on(hidden)
        return passed if self._hides else event

    def _note_other(self, event: bytes, ids: bytes) -> None:
        """Take an event that ends at no clean place, or the first one that holds text."""
        before, opening, text = event.partition(self._opening)
        if not ids:
            del self.ids[-1:]
        if not opening or self._head not in (_UNKNOWN, before + opening):
            self.lost = NotResumableReason.NOT_PLAIN
        elif self._head == _UNKNOWN:
            self._head = before + opening
            if ids.isdigit() and text[0] != _QUOTE:
                self.clean_bytes, self.clean = len(self.ids), event
                return
        self._keep(event)


class ReplayRecord(Record):
    """Remembers whole events."""

    def pass_on(self, event: bytes) -> bytes:
        """Remember one event."""
        if not self._note_special(event) and self.lost is None:
            self.first = self.first or event
            self.last = event
            self._keep(event)
        return b"" if self.broken else event


def nodes_own_error(event: bytes) -> StreamBrokenError | None:
    """Take an error event that is not the client's fault for what it is: the end of the node's answer."""
    error = parse(event).body["error"]
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and code >= 500:
        return StreamBrokenError(FailureKind.STATUS, f"it sent an error {code}")
    return None
