"""An answer of messages or responses, as the main path wants it: relayed as it comes, known to be complete, never resumed."""

from collections.abc import Callable
from typing import Final

from baton.proxy.request.endpoints import MESSAGES, RESPONSES
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume.ending import Ending
from baton.proxy.resume.first_message_token import MessagePart, MessageSplicer
from baton.proxy.resume.first_token import FirstTokenSplicer, PrefillPart
from baton.proxy.resume.rules import NotResumableReason
from baton.proxy.resume.stream import Mode, Stream

_LAST: Final = {
    MESSAGES: (b"message_stop", b"error"),
    RESPONSES: (b"response.completed", b"response.incomplete", b"response.failed", b"error"),
}


class TypedStream(Stream):
    """One answer."""

    def __init__(self, request: ClientRequest, *, relays: bool = False) -> None:
        super().__init__(request, "off", relays=relays)
        self.way = NotResumableReason.ENDPOINT
        self.passing = self._ending = Ending(_LAST[request.endpoint])

    def _make_part(self) -> PrefillPart:
        return MessagePart(None)

    def _make_splicer(self, part: PrefillPart, goes_on: Callable[[], None]) -> FirstTokenSplicer:
        return MessageSplicer(part.known, self._ending.take, goes_on)

    @property
    def ended(self) -> bool:
        """Whether the answer's last event has passed."""
        return self._ending.complete


def stream_of(request: ClientRequest, mode: Mode, *, relays: bool = True) -> Stream:
    """Return what a request's answer passes through."""
    return TypedStream(request, relays=relays) if request.endpoint in _LAST else Stream(request, mode, relays=relays)
