"""The prefill node's part of a stream: its events up to the first token, for the client. Pure."""

from baton.proxy.errors import StreamBrokenError
from baton.proxy.resume.events import COMMENT, Splitter
from baton.proxy.resume.record import without_ids
from baton.proxy.resume.short_record import ShortRecord


class PrefillPart:
    """Of one attempt."""

    def __init__(self, record: ShortRecord) -> None:
        """`record`: the answer's."""
        self.has_passed = False  # something for the client
        self.ended = False
        self._record = record
        self._splitter = Splitter()

    @property
    def is_whole(self) -> bool:
        """Whether the answer has ended with it."""
        return self.ended and self._record.done

    @property
    def broken(self) -> StreamBrokenError | None:
        """What the node said of its failure."""
        return self._record.broken

    def take(self, data: bytes) -> bytes:
        """Return what the client gets of some bytes."""
        return b"".join(map(self._take, self._splitter.whole(data)))

    def close(self) -> None:
        """Take no more: the decode node's stream has begun."""
        self.ended = True

    def _take(self, event: bytes) -> bytes:
        if self.ended:
            return b""
        bare, dialect = without_ids(event), self._record.dialect
        if bare.startswith(COMMENT) or bare.isspace():
            self._record.take_event(event)
            return b""
        is_failure = dialect.is_failure(bare)
        if dialect.ends_prefill_part(bare) and not is_failure:
            self.ended = True
            return b""
        passed = self._record.take_event(event)
        self.ended = is_failure or self._record.done
        if is_failure:  # a client's fault is the decode node's to say
            self._record.reopen()
            return b""
        self.has_passed = self.has_passed or bool(passed)
        return passed
