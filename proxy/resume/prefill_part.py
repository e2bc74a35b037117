"""The prefill node's part of a stream: its events up to the first token, for the client. Pure."""

from typing import Final

from baton.proxy.errors import StreamBrokenError
from baton.proxy.resume.events import COMMENT, Splitter, without_ids
from baton.proxy.resume.short_record import ShortRecord

_FINISHED: Final = b'"finish_reason":"'  # of a choice; no text can hold it, a string's quotes are escaped


class PrefillPart:
    """A prefill node's part of a stream, in one attempt."""

    def __init__(self, record: ShortRecord, choices: int) -> None:
        self.has_passed = False  # something for the client
        self._open_choices = choices
        self._cut_short = False  # the node has ended a choice that goes on on the decode node
        self.ended = False  # it takes no more
        self._record = record
        self._splitter = Splitter()

    @property
    def is_whole(self) -> bool:
        return self.ended and self._record.done

    @property
    def broken(self) -> StreamBrokenError | None:
        """What the node said of its failure."""
        broken = self._record.broken
        return broken if isinstance(broken, StreamBrokenError) else None

    def take(self, data: bytes) -> bytes:
        return b"".join(map(self._take, self._splitter.whole(data)))

    def _take(self, event: bytes) -> bytes:
        if self.ended:
            return b""
        bare, dialect = without_ids(event), self._record.dialect
        if bare.startswith(COMMENT) or bare.isspace():
            self._record.take_event(event)
            return b""
        is_failure = dialect.is_failure(bare)
        if dialect.ends_prefill_part(bare) and not is_failure:
            self._cut_short = True
            if ids := event.removesuffix(bare):  # of other choices, too
                self._record.take_event(ids + b"\n")
            self._close_choice()
            return b""
        if self._open_choices > 0 and dialect.is_last(bare):  # its engine has ended a choice of which it said nothing
            self.ended = True
            return b""
        passed = self._record.take_event(event)
        if _FINISHED in bare:
            self._close_choice()
        if is_failure or self._record.done:
            self.ended = True
        if is_failure:  # a client's fault is the decode node's to say
            self._record.reopen()
            return b""
        self.has_passed = self.has_passed or bool(passed)
        return passed

    def _close_choice(self) -> None:
        self._open_choices -= 1
        self.ended = self._cut_short and self._open_choices <= 0
