"""One request's answer over as many legs as it takes: what is asked of the next one, and what its bytes pass through."""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final, Protocol
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from baton.contracts.http import AHEAD
from baton.contracts.kv_transfer import Start
from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.request.eligibility import count_answers, fetches_items, has_several_prompts
from baton.proxy.request.endpoints import MESSAGES, RESPONSES
from baton.proxy.request.fields import is_false, is_on, is_set
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume.chat_events import ChatEvents
from baton.proxy.resume.events import has_data
from baton.proxy.resume.kept_tokens import KeptTokens
from baton.proxy.resume.message_events import MessageEvents
from baton.proxy.resume.prefill_part import PrefillPart
from baton.proxy.resume.response_events import ResponseEvents
from baton.proxy.resume.rules import CannotFollowError, NotResumableReason, why_not_kept, why_not_resumed
from baton.proxy.resume.short_record import ShortRecord

MOST_CHOICES: Final = 32  # whose first tokens are relayed: each has a transfer
_BY_ANSWER: Final = frozenset((FailureKind.STATUS, FailureKind.PROTOCOL, FailureKind.REFUSED, FailureKind.EMPTY))


class GapRecord(Protocol):
    """Where it is noted how long the client waited for its second token."""

    sent_s: float
    second_token_gap_s: float | None


class Stream:
    """What is known of one answer."""

    def __init__(self, request: ClientRequest, *, resumes: bool, relays: bool = True) -> None:
        """`resumes`: broken streams may go on elsewhere. `relays`: the prefill node's token may be sent first."""
        self.why_not_resumed = why_not_resumed(request, resumes=resumes)
        choices = count_choices(request)
        self.why_not_relayed = why_not_relayed(request, choices) if relays else "off"
        self.choices = choices or 1
        if self.choices > 1 and self.why_not_resumed is not None:  # one may have to be mended when others have gone on
            self.why_not_relayed = self.why_not_relayed or "several"
        self.part: PrefillPart | None = None  # what a prefill node has streamed
        self.went_on = False  # the client has more than that
        names_tokens = self.why_not_resumed is None or not self.why_not_relayed
        is_recorded = names_tokens or (request.endpoint in (MESSAGES, RESPONSES) and is_on(request.fields, "stream"))
        self.record = _record_of(request) if is_recorded else None  # without one bytes are relayed as they come
        self.asked = _named(request) if names_tokens else request  # of the next node
        self.kept: KeptTokens | None = None  # of an answer that is not streamed
        if why_not_kept(request, resumes=resumes) is None:
            self.kept = KeptTokens()
            self.asked = replace(request, names_tokens=AHEAD)
        # Is told how long the client has waited for what the next leg adds.
        self.on_gap: Callable[[float], None] | None = None
        self._gap: Callable[[float], None] | None = None
        self._since_s = 0.0
        self._request = request

    @property
    def ended(self) -> bool:
        """Whether the answer's last event has passed; of one that is not recorded, that is not known."""
        return self.record is None or self.record.done

    @property
    def broken(self) -> StreamBrokenError | CannotFollowError | None:
        """What the node said of its failure, or that what follows differs, after everything before it has passed."""
        return self.record.broken if self.record is not None else None

    @property
    def can_start(self) -> bool:
        """Whether the client has the first token and nothing more, so that a node can start with it."""
        if self.record is None or self.went_on or self.part is None or not self.part.has_passed:
            return False
        return self.why_not_resumed is not NotResumableReason.LOGPROBS and bool(self.tokens())

    @property
    def can_be_mended(self) -> bool:
        """Whether a decode node that differs may have done so for want of the prefill node's tokens, with which another leg can start."""
        if self.asked.start or self.part is None or not self.part.has_passed:
            return False
        return self.can_start or (self.why_not_resumed is None and bool(self.tokens()))

    @property
    def can_go_on(self) -> bool:
        """Whether another node could go on with what the client has."""
        return self.record is not None and self.record.can_start

    def begin_prefill(self) -> None:
        """A prefill node is asked whose stream the client gets up to the first token."""
        if self.part is not None:  # what a node has said of which the client has nothing does not count
            self.record = _record_of(self._request)
        assert self.record is not None
        self.part = PrefillPart(self.record, self.choices)

    def restart(self, kind: FailureKind, *, had_tokens: bool = True) -> None:
        """Another leg is asked before the client has anything of the decode node's: it starts with the tokens that the answer has, if they are known.

        `had_tokens`: the node that failed was given them.
        """
        if self.can_start:
            self._start()
        elif self.kept is not None:
            if had_tokens and kind in _BY_ANSWER:  # the tokens may be at fault: the next one makes others
                self.kept = KeptTokens()
            self.asked = replace(self.asked, start=self.tokens())

    def make_again(self) -> None:
        """A decode node that starts with no tokens makes the answer from its beginning: they may be others."""
        if self.kept is not None:
            self.kept = KeptTokens()

    def begin_decode(self, record: GapRecord) -> None:
        if self.part is not None:
            self.part.ended = True
        if self.record is not None:
            self.record.begin_leg()
        is_second = self.part is not None and self.part.has_passed and not self.went_on
        self._gap = partial(setattr, record, "second_token_gap_s") if is_second else self.on_gap
        self._since_s = record.sent_s
        self.went_on = self.went_on or not is_second

    def take(self, data: bytes) -> bytes:
        """Return what the client gets of some bytes of a decode node's."""
        assert self.record is not None
        passed = self.record.take(data)
        if self._gap is not None and passed and has_data(passed):
            self._gap(perf_counter() - self._since_s)
            self._gap, self.on_gap, self.went_on = None, None, True
        return passed

    def go_on(self) -> None:
        """Prepare the next leg after one that broke; raise `CannotFollowError` if there is no exact way to go on."""
        if self.why_not_resumed is not None and not self.can_start:
            raise CannotFollowError(self.why_not_resumed)
        self._start()

    def tokens(self) -> Start:
        """Return the ids of the tokens that the answer has, by choice; nothing if they are not known."""
        if self.kept is not None:
            return self.kept.start()
        try:
            return self.record.start() if self.record is not None else ()
        except CannotFollowError:
            return ()

    def _start(self) -> None:
        assert self.record is not None
        self.asked = replace(self.asked, start=self.record.start())


def why_not_relayed(request: ClientRequest, choices: int | None) -> str:
    """Say why the prefill node's token is not sent to the client before the decode node's stream; "" if it is.

    The values are labels of `baton_first_tokens_total`. `choices`: what `count_choices` has said.
    """
    fields = request.fields
    if not is_on(fields, "stream"):
        return "whole"
    if choices is None or choices > MOST_CHOICES:
        return "several"
    if is_set(fields, "echo") and not is_false(fields, "echo"):
        return "echo"
    return "fetched" if fetches_items(fields) else ""  # each node fetches an item by itself, and may get another one


def count_choices(request: ClientRequest) -> int | None:
    """Return how many answers one prompt gets; None if there are several prompts, or that is not clear."""
    if request.endpoint in (MESSAGES, RESPONSES):
        return 1
    return None if has_several_prompts(request.fields) else count_answers(request.fields)


def _named(request: ClientRequest) -> ClientRequest:
    """Return what is asked of a node that names the answer's tokens; several nodes make one response."""
    fields = request.fields
    if request.endpoint == RESPONSES and not is_set(fields, "request_id"):
        fields = {**fields, "request_id": msgspec.Raw(b'"resp_%b"' % uuid4().hex.encode())}
    return replace(request, names_tokens="1", fields=fields)


def _record_of(request: ClientRequest) -> ShortRecord:
    if request.endpoint == RESPONSES:
        return ShortRecord(ResponseEvents(), rewrites=True)
    if request.endpoint == MESSAGES:
        return ShortRecord(MessageEvents())
    return ShortRecord(ChatEvents(), has_logprobs=is_on(request.fields, "logprobs"))
