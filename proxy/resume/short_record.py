"""The record of a stream that may be short: what it says is only read when there is much of it, or when it breaks. Pure.

Until then events are kept as they came. A further leg that begins, byte for byte, with what the client has is not read
either: so goes a stream whose first token came from a prefill node, unless the two nodes have begun it in different
seconds.
"""

from typing import Final

from baton.contracts.kv_transfer import Start
from baton.proxy.errors import StreamBrokenError
from baton.proxy.resume.events import COMMENT, Splitter, without_ids
from baton.proxy.resume.record import AnswerRecord, Dialect, take_each
from baton.proxy.resume.rules import CannotFollowError

MOST_EVENTS: Final = 12  # of a leg


class ShortRecord:
    """One answer, over all its legs, as an `AnswerRecord` has it: that takes over when it is needed."""

    def __init__(self, dialect: Dialect, *, rewrites: bool = False, has_logprobs: bool = False) -> None:
        self.dialect = dialect
        self._rewrites = rewrites
        self._has_logprobs = has_logprobs
        self._record: AnswerRecord | None = None  # which has taken over
        self._legs: list[list[bytes]] = [[]]  # their events, as they came
        self._known: list[bytes] = []  # those of the leg before, which the client has
        self._splitter = Splitter()
        self._done = False

    @property
    def done(self) -> bool:
        return self._done if self._record is None else self._record.done

    @property
    def broken(self) -> StreamBrokenError | CannotFollowError | None:
        return None if self._record is None else self._record.broken

    @property
    def can_start(self) -> bool:
        return self._read().can_start

    def start(self) -> Start:
        return self._read().start()

    def reopen(self) -> None:
        self._read().reopen()

    def begin_leg(self) -> None:
        begun = [leg for leg in self._legs if leg]
        if self._record is not None or len(begun) > 1 or any(_says_nothing(event) for leg in begun for event in leg):
            self._read().begin_leg()
            return
        self._known = begun[0] if begun else []
        self._legs.append([])
        self._splitter = Splitter()

    def take(self, data: bytes) -> bytes:
        if self._record is not None:
            return self._record.take(data)
        return take_each(self.take_event, self._splitter.whole(data), lambda exc: self._read().break_off(exc))

    def take_event(self, event: bytes) -> bytes:
        if self._record is not None:
            return self._record.take_event(event)
        leg, bare = self._legs[-1], without_ids(event)
        at = len(leg)
        if at >= MOST_EVENTS or (self._known and self._rewrites) or self.dialect.is_failure(bare):
            return self._read().take_event(event)
        if at < len(self._known):
            if event != self._known[at]:
                return self._read().take_event(event)
            leg.append(event)
            return b""
        leg.append(event)
        self._done = self._done or self.dialect.is_last(bare)
        return b"" if bare.isspace() else bare

    def _read(self) -> AnswerRecord:
        if self._record is None:
            self._record = AnswerRecord(self.dialect, rewrites=self._rewrites, has_logprobs=self._has_logprobs)
            for number, leg in enumerate(self._legs):
                if number:
                    self._record.begin_leg()
                for event in leg:
                    self._record.take_event(event)
            self._record.go_on_with(self._splitter)
            self._legs, self._known = [], []
        return self._record


def _says_nothing(event: bytes) -> bool:
    return not event.strip() or without_ids(event).startswith(COMMENT) or without_ids(event).isspace()
