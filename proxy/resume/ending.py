"""Seeing the last event of a stream of named events go by, whatever the pieces are in which it arrives. Pure.

Events of these APIs say what they are in a line of their own. JSON holds no bare newline, so that no answer's text can look
like one. The last event is large, it may hold the whole answer: nothing is kept but the end of what went by.
"""

from collections.abc import Iterable
from typing import Final

_LINE: Final = b"\nevent: %b\n"
_BLANK: Final = b"\n\n"


class Ending:
    """What passes through it comes out unchanged."""

    __slots__ = ("_keep", "_marks", "_seen", "_tail")

    def __init__(self, last: Iterable[bytes]) -> None:
        """`last` names the events that may be the last one."""
        self._marks = tuple(_LINE % name for name in last)
        self._keep = max(map(len, self._marks))
        self._tail = b"\n"
        self._seen = False

    def take(self, data: bytes) -> bytes:
        """Look at some bytes."""
        seen = self._tail + data
        self._seen = self._seen or any(mark in seen for mark in self._marks)
        self._tail = seen[-self._keep :]
        return data

    @property
    def complete(self) -> bool:
        """Whether the last event has passed, with its end."""
        return self._seen and self._tail.endswith(_BLANK)
