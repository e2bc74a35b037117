"""What happened to each block last: who got it, who wrote to it, who let go of it.

Written all the time, read only when something is wrong. A few events per block, each one object for all its blocks.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

EVENTS_PER_BLOCK = 6
ENDED_REQUESTS = 4096


class _Event(NamedTuple):
    at_s: float  # monotonic
    what: str
    request_id: str


class BlockHistory:
    """The last events of every block of the pool."""

    def __init__(self) -> None:
        self._events: dict[int, tuple[_Event, ...]] = {}  # block → oldest first
        self._ended: OrderedDict[str, float] = OrderedDict()  # request → when, s

    def note(self, what: str, request_id: str, blocks: Iterable[int]) -> None:
        event = _Event(time.monotonic(), what, request_id)
        events = self._events
        for block in blocks:
            events[block] = (*events.get(block, ())[1 - EVENTS_PER_BLOCK :], event)

    def ended(self, request_id: str) -> None:
        """A request has ended: from now on its blocks should be another request's, or free."""
        self._ended[request_id] = time.monotonic()
        if len(self._ended) > ENDED_REQUESTS:
            self._ended.popitem(last=False)

    def of(self, block: int, now: float) -> list[str]:
        return [self._tell(event, now) for event in self._events.get(block, ())]

    def _tell(self, event: _Event, now: float) -> str:
        text = f"{now - event.at_s:.1f} s ago {event.what} {event.request_id}"
        ended = self._ended.get(event.request_id)
        return text if ended is None else f"{text}, which ended {now - ended:.1f} s ago"
