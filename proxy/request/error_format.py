"""An error of the proxy's own as each API's clients know it, as a body and as an event of a stream. Pure.

What a node said of a request stays as it was.
"""

from typing import Final

import msgspec

from baton.proxy.errors import NodeAnsweredError, ProxyError
from baton.proxy.request.endpoints import COUNT_TOKENS, MESSAGES, RESPONSES

_ANTHROPIC_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ErrorFormat:
    """OpenAI's chats and completions, and whatever is passed to nodes as it came; other APIs differ."""

    def body(self, error: ProxyError) -> bytes:
        return error.body()

    def event(self, error: ProxyError) -> bytes:
        """Return what ends a stream, without its blank line."""
        return b"data: " + error.body()


class OpenAiResponses(ErrorFormat):
    """OpenAI's responses: an event has its name, and its fields are at the top; clients look for `error` as well."""

    def event(self, error: ProxyError) -> bytes:
        kind = error.kind
        said = {"type": "error", "code": kind, "message": error.message, "param": error.param, "sequence_number": 0}
        inner = {"message": error.message, "type": kind, "param": error.param, "code": int(error.status)}
        return b"event: error\ndata: " + msgspec.json.encode({**said, "error": inner})


class Anthropic(ErrorFormat):
    """Anthropic's messages."""

    def body(self, error: ProxyError) -> bytes:
        if isinstance(error, NodeAnsweredError) and error.said:
            return error.said
        kind = _ANTHROPIC_KINDS.get(int(error.status), "invalid_request_error" if error.status < 500 else "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})

    def event(self, error: ProxyError) -> bytes:
        return b"event: error\ndata: " + self.body(error)


OPENAI: Final = ErrorFormat()
_ANTHROPIC: Final = Anthropic()
_SHAPES: Final[dict[str, ErrorFormat]] = {
    MESSAGES: _ANTHROPIC,
    COUNT_TOKENS: _ANTHROPIC,
    RESPONSES: OpenAiResponses(),
}


def shape_of(path: str) -> ErrorFormat:
    return _SHAPES.get(path, OPENAI)
