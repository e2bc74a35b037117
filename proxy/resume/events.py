"""A stream of server-sent events, cut into whole events. Pure."""

from typing import Any, Final

import msgspec

from baton.contracts.http import TOKENS_COMMENT

END: Final = b"\n\n"
DONE: Final = b"data: [DONE]"
COMMENT: Final = b":"  # what keeps a connection open (`--sse-keep-alive-interval`), and ids of tokens
ERROR: Final = b'data: {"error":'
_DATA: Final = b"data: "


class Splitter:
    """Gives out whole events, whatever the pieces are in which they arrive."""

    __slots__ = ("_part",)

    def __init__(self) -> None:
        self._part = b""

    @property
    def is_empty(self) -> bool:
        """Whether no part of an event waits for its rest."""
        return not self._part

    def whole(self, data: bytes) -> list[bytes]:
        """Return the events that are complete, each with its end; what is left waits for the next piece."""
        if self._part:
            data = self._part + data
            self._part = b""
        if 0 < data.find(END) == len(data) - 2:  # one event, as nodes send it
            return [data]
        *events, self._part = data.split(END)
        return [event + END for event in events]


def without_ids(event: bytes) -> bytes:
    """Return an event without the lines that name tokens."""
    while event.startswith(TOKENS_COMMENT):
        event = event[event.find(b"\n") + 1 :]
    return event


def has_data(passed: bytes) -> bool:
    """Whether there is an event among the comments that keep a connection open while a prompt is computed."""
    return _DATA in passed


def parse(event: bytes) -> dict[str, Any]:
    """Read the JSON of an event, named or not."""
    return msgspec.json.decode(event[event.find(_DATA) + len(_DATA) :], type=dict[str, Any])


def encode(body: dict[str, Any], like: bytes = b"") -> bytes:
    """Return an event, named as another one is."""
    name = like[: like.find(b"\n") + 1] if like.startswith(b"event: ") else b""
    return name + _DATA + msgspec.json.encode(body) + END
