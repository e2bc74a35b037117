"""A stream of server-sent events, cut into whole events, and what one holds. Pure."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

END: Final = b"\n\n"
DONE: Final = b"data: [DONE]"
COMMENT: Final = b":"  # what keeps a connection open (`--sse-keep-alive-interval`)
ERROR: Final = b'data: {"error":'
_LINE_END: Final = ord("\n")
_DATA: Final = b"data: "


class Splitter:
    """Gives out whole events, whatever the pieces are in which they arrive."""

    __slots__ = ("_part",)

    def __init__(self) -> None:
        self._part = b""

    def whole(self, data: bytes) -> list[bytes]:
        """Return the events that are complete, each with its end; what is left waits for the next piece."""
        if self._part:
            data = self._part + data
            self._part = b""
        if 0 < data.find(b"\n") == len(data) - 2 and data[-1] == _LINE_END:  # one event, as nodes send it
            return [data]
        *events, self._part = data.split(END)
        return [event + END for event in events]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one event adds to an answer."""

    body: dict[str, Any]  # the whole event
    choice: dict[str, Any] | None  # None: an event without one, such as usage
    text: str
    ids: list[int]

    @property
    def ends(self) -> bool:
        """Whether the answer ends with it."""
        return self.choice is not None and self.choice.get("finish_reason") is not None


def parse(event: bytes) -> Piece:
    """Read an event of either endpoint.

    Raises:
        msgspec.DecodeError: it is not what vLLM sends.
    """
    body = msgspec.json.decode(event.strip().removeprefix(_DATA), type=dict[str, Any])
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if choice is None:
        return Piece(body=body, choice=None, text="", ids=[])
    text = choice["delta"].get("content") if "delta" in choice else choice.get("text")
    return Piece(body=body, choice=choice, text=text or "", ids=choice.get("token_ids") or [])


def encode(body: dict[str, Any]) -> bytes:
    """Return an event."""
    return _DATA + msgspec.json.encode(body) + END
