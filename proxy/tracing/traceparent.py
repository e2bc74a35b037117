"""W3C Trace Context: what a client says of the trace that its request belongs to. Pure."""

import re
from typing import Final, NamedTuple

from baton.proxy.http.headers import RawHeaders

_FORM: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_VERSION: Final = b"ff"
_FIRST_VERSION: Final = b"00"
_SAMPLED: Final = 1


class Parent(NamedTuple):
    """The span that a request was made in."""

    trace_id: int
    span_id: int
    sampled: bool


def parent_of(headers: RawHeaders) -> Parent | None:
    """Return the client's span; None if it names none, or in a way that cannot be parsed."""
    for name, value in headers:
        if name == b"traceparent":
            return _parsed(value)
    return None


def state_of(headers: RawHeaders) -> list[str]:
    """Return what the tracing systems before us want to be handed on, header by header."""
    return [value.decode("latin-1") for name, value in headers if name == b"tracestate"]


def line(trace_id: int, span_id: int, *, sampled: bool) -> bytes:
    return b"traceparent: 00-%032x-%016x-%02x\r\n" % (trace_id, span_id, sampled)


def _parsed(value: bytes) -> Parent | None:
    match = _FORM.fullmatch(value)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _NO_VERSION or (version == _FIRST_VERSION and more is not None):
        return None
    parent = Parent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return parent if parent.trace_id and parent.span_id else None
