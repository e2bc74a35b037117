"""What can go wrong in the proxy, each with the answer that the client gets for it.

`ProxyError` and its children end a request: they know their HTTP status and their body in OpenAI's shape.
`UpstreamError` is what `http/upstream.py` makes of every failure of a node's HTTP connection; it names no address,
since its text may reach a client.
"""

from collections.abc import Iterable
from enum import StrEnum
from http import HTTPStatus

import msgspec

from baton.contracts.http import error_body


class ProxyError(Exception):
    """A request ends with this error."""

    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "internal_server_error"
    code: str | None = None  # OpenAI's word for it; without one, the status
    headers: tuple[tuple[bytes, bytes], ...] = ()  # sent with the answer

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> bytes:
        return msgspec.json.encode(
            error_body(self.message, kind=self.kind, code=self.code or int(self.status), param=self.param)
        )


class BadRequestError(ProxyError):
    """The request cannot be understood."""

    status = HTTPStatus.BAD_REQUEST
    kind = "BadRequestError"  # vLLM's word


class UnknownModelError(ProxyError):
    """No node serves the model."""

    status = HTTPStatus.NOT_FOUND
    kind = "NotFoundError"  # vLLM's word


class BodyTooLargeError(ProxyError):
    """The request's body is over the limit."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    kind = "invalid_request_error"


class BadGatewayError(ProxyError):
    """A node could not be reached, or answered something that is no answer."""

    status = HTTPStatus.BAD_GATEWAY
    kind = "upstream_error"


class UnavailableError(ProxyError):
    """No node can take the request now, or the proxy is stopping."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    kind = "service_unavailable_error"
    headers = ((b"retry-after", b"1"),)


class Refusal(StrEnum):
    """Why a request was told to come again; the values are labels of `baton_refusals_total`."""

    TENANT = "tenant"  # as many of one tenant's wait as may
    QUEUE = "queue"  # as many wait as may
    WAIT = "wait"  # it would wait beyond its deadline
    WAITED = "waited"  # it did
    DESCRIPTORS = "descriptors"  # the process may not open more files
    DECODE_CAP = "decode_cap"  # no decode node may be given another prompt to compute


class RetryLaterError(ProxyError):
    """There is too much to do now; the answer says when to come again."""

    def __init__(self, message: str, *, reason: Refusal, retry_after_s: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.headers: tuple[tuple[bytes, bytes], ...] = ((b"retry-after", b"%d" % retry_after_s),)


class OverloadedError(RetryLaterError):
    """No tenant's request could begin in time."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    kind = "service_unavailable_error"


class NoDescriptorsError(OverloadedError):
    """The process may not open more files; the client's connection is closed, which gives one back."""

    def __init__(self) -> None:
        message = "the proxy has as many connections as it may have"
        super().__init__(message, reason=Refusal.DESCRIPTORS, retry_after_s=1)
        self.headers += ((b"connection", b"close"),)


class NoRoomError(OverloadedError):
    """No prefill node can compute the prompt, and no decode node may be given another one."""

    def __init__(self) -> None:
        message = "no prefill node can compute the prompt, and the decode nodes compute as much as they may"
        super().__init__(message, reason=Refusal.DECODE_CAP, retry_after_s=1)


class TooManyRequestsError(RetryLaterError):
    """This tenant asks for more than its part."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    kind = "rate_limit_error"


class DeadlineError(ProxyError):
    """The request did not end within the time that the configuration allows."""

    status = HTTPStatus.GATEWAY_TIMEOUT
    kind = "timeout_error"


class ClientGoneError(Exception):
    """The client closed its connection; no answer can be sent."""


class FailureKind(StrEnum):
    """How a leg failed; the values are labels of `baton_leg_failures_total`."""

    CONNECT = "connect"  # no connection: refused, unreachable, no name
    DISCONNECT = "disconnect"  # the connection ended before the answer did
    TIMEOUT = "timeout"  # silence: no connection, or no answer, in time
    STATUS = "status"  # a 5xx
    UNFETCHED = "unfetched"  # a 5xx where the prompt's items stand elsewhere: vLLM says 500 of what it cannot fetch
    BUSY = "busy"  # 408 or 429: another node may be better at it
    REFUSED = "refused"  # any other 4xx
    EMPTY = "empty"  # a 200 without a body
    PROTOCOL = "protocol"  # not HTTP, or an answer that makes no sense
    STALLED = "stalled"  # silence in the middle of a stream that another node can go on with
    DRAINED = "drained"  # no failure: the node is drained, and another one goes on with its stream
    OWN = "own"  # this proxy can open no connection, to whatever node


class UpstreamError(Exception):
    """A node's connection failed."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class StreamBrokenError(BadGatewayError):
    """A decode node's stream broke; the client has part of it."""

    def __init__(self, how: "FailureKind", message: str) -> None:
        super().__init__(f"the decode node failed while it was answering: {message}")
        self.how = how


class NodeAnsweredError(ProxyError):
    """A node said no, and what it said is the answer; no body: it was not in OpenAI's shape."""

    kind = "invalid_request_error"

    def __init__(self, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(f"the node refused the request with status {status}")
        self.status = status
        self.said = body
        self.headers = tuple(headers)

    def body(self) -> bytes:
        """Return the node's own body, or ours where that was not in OpenAI's shape."""
        return self.said or super().body()
