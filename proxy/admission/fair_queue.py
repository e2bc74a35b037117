"""A queue that is fair among tenants. Pure.

Start-time fair queueing: a request's tag is where its tenant's previous one ended, on a clock that goes on by the cost
of what is served; the smallest tag is served first. So a tenant with a thousand requests waiting delays another one's
first request by one of them, not by a thousand. A lower priority number goes before a higher one, whatever the tags.
"""

import heapq
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_KEPT: Final = 512  # tenants that are remembered although nothing of theirs waits: those that came last


class FairQueue(Generic[T]):
    """Items that wait; each is put in once."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, str, T]] = []  # priority, tag, arrival, tenant, item
        self._waiting: dict[T, tuple[str, float]] = {}  # item → tenant and cost; what is not in it has left
        self._counts: dict[str, int] = {}  # of tenants that have items here
        self._ends: dict[str, float] = {}  # tag at which a tenant's last item ends
        self._clock = 0.0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting_of(self, tenant: str) -> int:
        return self._counts.get(tenant, 0)

    def ahead_of(self, tenant: str, priority: int) -> int:
        """How many would be served before what came now. Goes through all of them."""
        place = priority, max(self._clock, self._ends.get(tenant, 0.0))
        return sum(entry[:2] <= place and entry[-1] in self._waiting for entry in self._heap)

    def put(self, item: T, *, tenant: str, priority: int, cost: float) -> None:
        if len(self._ends) > 2 * (len(self._counts) + _KEPT):
            self._forget()
        tag = max(self._clock, self._ends.pop(tenant, 0.0))
        self._ends[tenant] = tag + cost  # at the end: the dictionary is in the order of arrivals
        self._arrivals += 1
        heapq.heappush(self._heap, (priority, tag, self._arrivals, tenant, item))
        self._waiting[item] = tenant, cost
        self._counts[tenant] = self._counts.get(tenant, 0) + 1

    def pop(self) -> T | None:
        """Take out the next one; None if no request waits."""
        while self._heap:
            _, tag, _, _, item = heapq.heappop(self._heap)
            if item in self._waiting:
                self._clock = max(self._clock, tag)
                self._leave(item)
                return item
        self._ends.clear()
        return None

    def remove(self, item: T) -> None:
        """Remove a waiter, for which its tenant does not pay; one that is not here is ignored."""
        if item in self._waiting:
            tenant, cost = self._waiting[item]
            if tenant in self._ends:
                self._ends[tenant] = max(self._clock, self._ends[tenant] - cost)
            self._leave(item)
            if len(self._heap) > 2 * len(self._waiting) + 16:
                self._heap = [entry for entry in self._heap if entry[-1] in self._waiting]
                heapq.heapify(self._heap)

    def _forget(self) -> None:
        """Forget tenants that have paid, and of the others without anything here all but the last.

        The clock stands still while everybody who comes is new, so that they may all have something to pay.
        """
        absent = [name for name, end in self._ends.items() if end > self._clock and name not in self._counts]
        kept = {*self._counts, *absent[-_KEPT:]}
        self._ends = {name: end for name, end in self._ends.items() if name in kept}

    def _leave(self, item: T) -> None:
        tenant, _ = self._waiting.pop(item)
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
