"""One request's answer over as many legs as it takes: what is asked of the next one, and what its bytes pass through."""

from dataclasses import replace
from typing import Final, Literal, Protocol

import msgspec

from baton.proxy.errors import StreamBrokenError
from baton.proxy.request.endpoints import CHAT
from baton.proxy.request.fields import is_on
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume import continuation
from baton.proxy.resume.continuation import CannotFollowError
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


class Stream:
    """What is known of one answer."""

    def __init__(self, request: ClientRequest, mode: Mode) -> None:
        self.asked = request  # of the next node
        self.passing: Passing | None = None  # None: bytes are relayed as they come
        self.way = _way(request, mode)
        self._request = request
        self._record: Record | None = None
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
        return self._record is None or self._record.done

    @property
    def broken(self) -> StreamBrokenError | None:
        """What the node said of its failure, after everything before it has passed."""
        return self._record.broken if self._record else None

    def go_on(self) -> bytes | None:
        """Prepare the next leg after one that broke; return what is missing if no leg is needed.

        Raises:
            CannotFollowError: there is no exact way to go on.
        """
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
