"""Which headers cross the proxy, in either direction. Pure.

Everything a client sends reaches both nodes (its Authorization above all), but for what concerns one connection
only, what the body's own rewriting changes, and what is ours to say.
"""

import re
import secrets
from collections.abc import Iterable
from typing import Final

from baton.contracts.http import INTERNAL_HEADER_PREFIX

RawHeaders = Iterable[tuple[bytes, bytes]]
RawHeaderList = list[tuple[bytes, bytes]]

REQUEST_ID: Final = b"x-request-id"

_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# The body is encoded again for each leg; `expect` was for us; no encoding, so that an error event can be appended.
_NOT_FORWARDED: Final = _HOP_BY_HOP | {
    b"accept-encoding",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"expect",
    b"host",
    REQUEST_ID,
}
_NOT_FORWARDED_TRACED: Final = _NOT_FORWARDED | {b"traceparent", b"tracestate"}
_NOT_RELAYED: Final = _HOP_BY_HOP | {b"content-length", b"date", b"server", REQUEST_ID}
_INTERNAL: Final = (INTERNAL_HEADER_PREFIX.encode(), b"x-data-parallel-")
_REQUEST_ID_FORM: Final = re.compile(rb"[\x21-\x7e]{1,200}")


def request_id_of(headers: RawHeaders) -> str:
    """Return the client's request id, or a fresh one if there is none that is fit for logs."""
    for name, value in headers:
        if name == REQUEST_ID and _REQUEST_ID_FORM.fullmatch(value):
            return value.decode("ascii")
    return secrets.token_hex(16)


def to_forward(headers: RawHeaders, trace: bytes | None = None) -> bytes:
    """Return the client's headers that both nodes get, as lines. Names are lower-case, as ASGI gives them.

    `trace`: lines that take the place of those about its trace, which pass as they came if this is None.
    """
    left = _NOT_FORWARDED if trace is None else _NOT_FORWARDED_TRACED
    kept = [b"content-type: application/json\r\n"]
    kept += [b"%b: %b\r\n" % pair for pair in headers if pair[0] not in left and not pair[0].startswith(_INTERNAL)]
    if trace:
        kept.append(trace)
    return b"".join(kept)


def line(name: str, value: str) -> bytes:
    """Return one header as it is sent; both are ours."""
    return f"{name}: {value}\r\n".encode("ascii")


def to_relay(headers: RawHeaders) -> RawHeaderList:
    """Return the decode node's headers that the client gets; the length is the caller's to say."""
    return [pair for pair in headers if pair[0] not in _NOT_RELAYED and not pair[0].startswith(_INTERNAL)]


def find(headers: RawHeaders, wanted: bytes) -> bytes | None:
    """Return the first value of a header; names are lower-case, on both sides of the proxy."""
    for name, value in headers:
        if name == wanted:
            return value
    return None


def printable(text: str) -> bytes:
    """Return a text as a header value: one line of ASCII."""
    return bytes(byte if 0x20 <= byte < 0x7F else 0x20 for byte in text.encode("ascii", "replace"))
