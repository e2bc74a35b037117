"""One request's answer over as many legs as it takes: what is asked of the next one, and what its bytes pass through."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Final, Literal, Protocol

import msgspec

from baton.proxy.errors import StreamBrokenError
from baton.proxy.request.endpoints import CHAT
from baton.proxy.request.fields import is_on
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume import continuation
from baton.proxy.resume.continuation import CannotFollowError
from baton.proxy.resume.first_token import FirstTokenSplicer, PrefillPart, why_not_relayed
from baton.proxy.resume.record import Record, ReplayRecord, TokenRecord
from baton.proxy.resume.rules import NotResumableReason, ResumeStrategy, find_resume_strategy
from baton.proxy.resume.splicer import ReplaySeam, TokenSeam

Mode = Literal["off", "token_ids", "all"]
_TRUE: Final = msgspec.Raw(b"true")


class Passing(Protocol):
    """What an answer's bytes pass through on their way to the client."""

    def take(self, data: bytes) -> bytes:
        """Return what the client gets for some bytes."""
        ...


class GapRecord(Protocol):
    """Where it is noted how long the client waited for its second token."""

    sent_s: float
    second_token_gap_s: float | None


class Stream:
    """What is known of one answer."""

    def __init__(self, request: ClientRequest, mode: Mode, *, relays: bool = True) -> None:
        """`relays`: whether the prefill node's token may be sent to the client before the decode node streams."""
        self.asked = request  # of the next node
        self.passing: Passing | None = None  # None: bytes are relayed as they come
        self.way = _way(request, mode)
        self.part: PrefillPart | None = None  # what a prefill node has streamed
        self.went_on = False  # the client has more than that
        self.why_not_relayed = why_not_relayed(request) if relays else "off"
        self._request = request
        self._record: Record | None = None
        self._splicer: FirstTokenSplicer | None = None
        self._legs = 1
        if self.way is ResumeStrategy.TOKEN_IDS:
            tells = is_on(request.fields, "return_token_ids")
            self.asked = replace(request, fields={**request.fields, "return_token_ids": _TRUE})
            self.passing = self._record = TokenRecord(chat=request.endpoint == CHAT, hides=not tells)
        elif self.way is ResumeStrategy.REPLAY:
            self.passing = self._record = ReplayRecord()

    @property
    def ended(self) -> bool:
        """Whether the answer's last event has passed; of one that passes through nothing, that is not known."""
        if self._record is not None:
            return self._record.done
        return self._splicer is None or self._splicer.ended

    @property
    def broken(self) -> StreamBrokenError | None:
        """What the node said of its failure, after everything before it has passed."""
        return self._record.broken if self._record else None

    @property
    def can_start(self) -> bool:
        """Whether the client has the first token and nothing more, so that a node can start with it."""
        return self.part is not None and bool(self.part.known and self.part.ids) and not self.went_on

    def begin_prefill(self) -> None:
        """A prefill node is asked whose stream the client gets up to the first token."""
        self.part = self._make_part()

    def take_prefill(self, data: bytes) -> bytes:
        """Return what the client gets of some bytes of a prefill node's."""
        assert self.part is not None
        return self.part.take(data)

    def restart(self) -> None:
        """Another leg is asked before the decode node has added anything: it starts with the first token, if the client has that."""
        if self.can_start:
            assert self.part is not None
            self.asked = replace(self.asked, start=self.part.ids)

    def begin_decode(self, record: GapRecord) -> None:
        """A decode node's stream begins."""
        if self.part is not None:
            self.part.close()
        if self.went_on:
            return
        if self.part is None or not self.part.known:
            self.went_on = True  # the client has nothing of a prefill node's
            return
        if self._record is not None:
            self._record.restart()
        self.passing = self._splicer = self._make_splicer(self.part, partial(self._went_on, record))

    def _make_part(self) -> PrefillPart:
        return PrefillPart(self._record)

    def _make_splicer(self, part: PrefillPart, goes_on: Callable[[], None]) -> FirstTokenSplicer:
        inner = self._record.take if self._record is not None else None
        return FirstTokenSplicer(part.known, inner, goes_on, ids=part.ids)

    def _went_on(self, record: GapRecord) -> None:
        self.went_on = True
        record.second_token_gap_s = perf_counter() - record.sent_s

    def go_on(self) -> bytes | None:
        """Prepare the next leg after one that broke; return what is missing if no leg is needed.

        Raises:
            CannotFollowError: there is no exact way to go on.
        """
        if self.can_start:
            self.restart()
            return None
        self.went_on = True  # what is asked next goes on after all that the client has
        if isinstance(self.way, NotResumableReason):
            raise CannotFollowError(self.way)
        assert self._record is not None
        missing = continuation.closing(self._request, self._record)
        if missing is not None:
            return missing
        self._legs += 1
        if isinstance(self._record, TokenRecord):
            following = continuation.from_token_ids(self._request, self._record, self._legs)
            self.passing = TokenSeam(following, self._record, chat=self._request.endpoint == CHAT)
        else:
            following = continuation.from_the_start(self._request, self._record, self._legs)
            self.passing = ReplaySeam(following, self._record)
        self.asked = following.request
        return None


def _way(request: ClientRequest, mode: Mode) -> ResumeStrategy | NotResumableReason:
    if mode == "off" or not is_on(request.fields, "stream"):
        return NotResumableReason.OFF
    way = find_resume_strategy(request)
    return NotResumableReason.OFF if way is ResumeStrategy.REPLAY and mode == "token_ids" else way
