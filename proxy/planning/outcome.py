"""How a leg can end, one type for each way. A failure knows the error that the client gets if nothing else helps."""

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from baton.contracts.http import PATH_HEADER, RECOMPUTED
from baton.proxy.errors import BadGatewayError, FailureKind, NodeAnsweredError, ProxyError, UnavailableError
from baton.proxy.http.headers import find
from baton.proxy.http.response import UpstreamResponse


class Opened(msgspec.Struct, frozen=True):
    """The decode node answered: its head, and its first bytes (of a stream) or its whole body."""

    answer: UpstreamResponse
    first: bytes

    @property
    def recomputed(self) -> bool:
        """Whether the decode node says that it computed a prompt whose KV should have come."""
        return find(self.answer.headers, PATH_HEADER.encode()) == RECOMPUTED.encode()


@dataclass(frozen=True, slots=True)
class DecodeRefused:
    """The decode node answered 4xx: the client's own fault, which is the answer."""

    answered: NodeAnsweredError


@dataclass(frozen=True, slots=True)
class DecodeFailed:
    """The decode leg ended before anything could be relayed."""

    kind: FailureKind
    message: str
    answered: NodeAnsweredError | None = None  # its own 5xx, if that was in OpenAI's shape

    def error(self) -> ProxyError:
        return self.answered or BadGatewayError(f"the decode node failed: {self.message}")


class PrefillDone(msgspec.Struct, frozen=True):
    """The prefill node computed the prompt; whether the KV arrived is between the nodes."""

    answered_s: float = 0.0  # when its first token was there (time.perf_counter)
    is_whole: bool = False  # the client has the whole answer: it ended with its first token


@dataclass(frozen=True, slots=True)
class PrefillRefused:
    """The prefill node answered 4xx, which the decode node has not said so far."""

    answered: NodeAnsweredError
    kind: FailureKind = FailureKind.REFUSED
    label: ClassVar[str] = "prefill_refused"

    @property
    def reason(self) -> str:
        """For the response header."""
        return f"the prefill node refused the request: {int(self.answered.status)}"

    def error(self) -> ProxyError:
        """Return what the client gets where a prompt may not be computed on a decode node."""
        return self.answered


@dataclass(frozen=True, slots=True)
class PrefillFailed:
    """The prefill leg failed for a reason that lies with the node."""

    kind: FailureKind
    message: str
    may_be_pushed: bool = False  # its token was there: the KV may have come to the decode node all the same
    label: ClassVar[str] = "prefill_failed"  # of `baton_decisions_total`

    @property
    def reason(self) -> str:
        """For the response header."""
        return f"the prefill node failed: {self.message}"

    def error(self) -> ProxyError:
        """Return what the client gets where a prompt may not be computed on a decode node."""
        return UnavailableError(self.reason)


DecodeOutcome = Opened | DecodeRefused | DecodeFailed
PrefillOutcome = PrefillDone | PrefillRefused | PrefillFailed
