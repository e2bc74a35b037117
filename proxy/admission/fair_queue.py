"""A queue that is fair among tenants. Pure.

Start-time fair queueing: a tenant's first request has the tag at which what it was served before ends, on a clock that
goes on by the cost of what is served; the smallest tag is served first. So a tenant with a thousand requests waiting
delays another one's first request by one of them, not by a thousand. What leaves unserved costs nothing. A lower
priority number goes before a higher one, whatever the tags.
"""

import heapq
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_KEPT: Final = 512  # tenants that are remembered although nothing of theirs waits: those that were served last


@dataclass(slots=True)
class _Line(Generic[T]):
    """What waits of one tenant and priority, in the order of arrival."""

    tag: float  # of the first item
    items: dict[T, tuple[float, int]] = field(default_factory=dict)  # → cost, arrival


class FairQueue(Generic[T]):
    """Items that wait; each is put in once."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, str]] = []  # of each line: priority, tag, arrival, tenant
        self._lines: dict[tuple[int, str], _Line[T]] = {}  # by priority and tenant; one may have nothing left
        self._waiting: dict[T, tuple[int, str]] = {}  # item → its line
        self._counts: dict[str, int] = {}  # of tenants that have items here
        self._ends: dict[str, float] = {}  # tag at which what a tenant was served ends
        self._clock = 0.0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting_of(self, tenant: str) -> int:
        return self._counts.get(tenant, 0)

    def ahead_of(self, tenant: str, priority: int) -> int:
        """How many would be served before what came now. Goes through all of them."""
        own = self._lines.get((priority, tenant)) or _Line(self._clock)
        first = max(own.tag if own.items else self._clock, self._ends.get(tenant, 0.0))
        place = priority, first + sum(cost for cost, _ in own.items.values())
        ahead = 0
        for (theirs, name), line in self._lines.items():
            tag = max(line.tag, self._ends.get(name, 0.0))
            for cost, _ in line.items.values():
                if (theirs, tag) > place:
                    break
                ahead += 1
                tag += cost
        return ahead

    def put(self, item: T, *, tenant: str, priority: int, cost: float) -> None:
        self._arrivals += 1
        line = self._lines.get((priority, tenant))
        if line is None:
            line = self._lines[priority, tenant] = _Line(self._next_tag(tenant))
            heapq.heappush(self._heap, (priority, line.tag, self._arrivals, tenant))
        elif not line.items:  # all that waited in it has left: it begins again
            line.tag = max(line.tag, self._next_tag(tenant))
        line.items[item] = cost, self._arrivals
        self._waiting[item] = priority, tenant
        self._counts[tenant] = self._counts.get(tenant, 0) + 1

    def pop(self) -> T | None:
        """Take out the next one; None if no request waits."""
        while self._heap:
            priority, tag, _, tenant = heapq.heappop(self._heap)
            line = self._lines[priority, tenant]
            due = max(line.tag, self._ends.get(tenant, 0.0))
            if not line.items:
                del self._lines[priority, tenant]
            elif due > tag:  # more of the tenant has been served with another priority, or has left
                self._push(priority, due, tenant, line)
            else:
                return self._serve(priority, tag, tenant, line)
        self._ends.clear()
        return None

    def remove(self, item: T) -> None:
        """Remove a waiter; one that is not here is ignored."""
        if item in self._waiting:
            self._leave(item)
            if len(self._heap) > 2 * len(self._waiting) + 16:
                self._lines = {place: line for place, line in self._lines.items() if line.items}
                self._heap = [entry for entry in self._heap if (entry[0], entry[-1]) in self._lines]
                heapq.heapify(self._heap)

    def _next_tag(self, tenant: str) -> float:
        return max(self._clock, self._ends.get(tenant, 0.0))

    def _serve(self, priority: int, tag: float, tenant: str, line: _Line[T]) -> T:
        item, (cost, _) = next(iter(line.items.items()))
        self._clock = max(self._clock, tag)
        self._ends.pop(tenant, None)
        self._ends[tenant] = tag + cost  # at the end: the dictionary is in the order of service
        self._leave(item)
        if line.items:
            self._push(priority, tag + cost, tenant, line)
        else:
            del self._lines[priority, tenant]
        if len(self._ends) > 2 * (len(self._counts) + _KEPT):
            self._forget()
        return item

    def _push(self, priority: int, tag: float, tenant: str, line: _Line[T]) -> None:
        line.tag = tag
        _, arrival = next(iter(line.items.values()))
        heapq.heappush(self._heap, (priority, tag, arrival, tenant))

    def _forget(self) -> None:
        """Forget tenants that have paid, and of the others without anything here all but the last.

        The clock stands still while everybody who comes is new, so that they may all have something to pay.
        """
        absent = [name for name, end in self._ends.items() if end > self._clock and name not in self._counts]
        kept = {*self._counts, *absent[-_KEPT:]}
        self._ends = {name: end for name, end in self._ends.items() if name in kept}

    def _leave(self, item: T) -> None:
        place = self._waiting.pop(item)
        del self._lines[place].items[item]
        _, tenant = place
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
