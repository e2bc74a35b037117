"""How large a request's head may be. Pure.

httptools has no bound of its own: it keeps whatever comes until a header, or a trailer, is complete.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from baton.proxy.errors import ProxyError

MAX_TARGET_BYTES: Final = 8192  # path and query
_OF_A_HEADER: Final = 4  # colon, space and the line's end


class HeadError(ProxyError):
    """A head is refused, and its connection ends."""

    kind = "invalid_request_error"
    headers = ((b"connection", b"close"),)

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLimits:
    """What one request's head may have."""

    max_bytes: int  # of its line and headers
    max_headers: int

    def problem_of(self, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> HeadError | None:
        """Return what is wrong with a head that has come."""
        if len(target) > MAX_TARGET_BYTES:
            message = f"the request's path and query are longer than {MAX_TARGET_BYTES} bytes"
            return HeadError(HTTPStatus.REQUEST_URI_TOO_LONG, message)
        if len(headers) > self.max_headers:
            message = f"the request has more than {self.max_headers} headers"
            return HeadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)
        size_bytes = len(target) + _OF_A_HEADER * len(headers)
        for name, value in headers:
            size_bytes += len(name) + len(value)
        return self.too_large() if size_bytes > self.max_bytes else None

    def too_large(self) -> HeadError:
        """Return what is wrong with a head that goes on beyond its bytes."""
        message = f"the request's headers are longer than {self.max_bytes} bytes"
        return HeadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)


def as_bytes(error: ProxyError) -> bytes:
    """Return a whole answer, for a request that never became one."""
    body = error.body()
    status = HTTPStatus(error.status)
    lines = [b"HTTP/1.1 %d %b" % (status, status.phrase.encode()), b"content-type: application/json"]
    lines += [b"content-length: %d" % len(body), *(b"%b: %b" % pair for pair in error.headers)]
    return b"\r\n".join([*lines, b"", body])
