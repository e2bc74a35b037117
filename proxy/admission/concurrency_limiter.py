"""The gate: so many requests at once; the others wait in a bounded, fair queue, or are told at once when to come again.

A request waits only if it can be expected to begin before its deadline: else another replica had better serve it, now.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from baton.proxy.admission.fair_queue import FairQueue
from baton.proxy.errors import OverloadedError, Refusal, TooManyRequestsError
from baton.proxy.planning.retry_policy import MIN_LEFT_S

_SMOOTHING: Final = 0.1  # of the newest interval between two requests that ended
_LONGEST_S: Final = 60.0  # that anybody is told to stay away


class Ticket(NamedTuple):
    """What the gate knows of a request."""

    tenant: str
    priority: int = 0  # lower first
    cost: float = 1.0  # what a tenant pays with; bytes of prompt
    patience_s: float = math.inf  # left until its deadline


class ConcurrencyLimiter:
    """Counts those inside, and keeps the others in order."""

    def __init__(
        self,
        *,
        max_inside: int,
        max_waiting: int,
        max_waiting_per_tenant: int,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[float], None] = lambda _: None,  # is told how long each one who is let in has waited (s)
    ) -> None:
        self.max_inside = max_inside
        self.max_waiting = max_waiting
        self._max_per_tenant = max_waiting_per_tenant
        self._clock = clock
        self._waited = waited
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._interval_s = 0.0  # between two that ended while others waited
        self._since_s = 0.0  # the last one that ended, or that found the queue empty
        self.inside = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def inside_for(self, ticket: Ticket) -> AsyncIterator[None]:
        """Wait for a place, and hold it for the block.

        Raises:
            TooManyRequestsError: the tenant has as many waiting as it may.
            OverloadedError: the queue is full, or the deadline would come, or came, before the place.
        """
        if self.inside < self.max_inside and not self._queue:
            self.inside += 1
            self._waited(0.0)
        else:
            await self._wait(ticket)
        try:
            yield
        finally:
            self._leave()

    def expected_wait_s(self, ahead: int | None = None) -> float:
        """How long who comes now will wait, behind so many or all, if requests end as fast as they did."""
        return ((len(self._queue) if ahead is None else ahead) + 1) * self._interval_s

    async def _wait(self, ticket: Ticket) -> None:
        """Stand in line for a place; what is left of the request's time bounds it."""
        self._refuse_if_hopeless(ticket)
        began_s = self._clock()
        if not self._queue:
            self._since_s = began_s
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(turn, tenant=ticket.tenant, priority=ticket.priority, cost=ticket.cost)
        try:
            async with asyncio.timeout(None if ticket.patience_s == math.inf else ticket.patience_s - MIN_LEFT_S):
                await turn  # `_leave` hands its place on
        except (asyncio.CancelledError, TimeoutError) as exc:
            if turn.done() and not turn.cancelled():
                self._leave()  # it had been let in just then
            else:
                self._queue.remove(turn)
            if isinstance(exc, TimeoutError):
                message = "the request has waited until too little of its time was left"
                raise OverloadedError(
                    message, reason=Refusal.WAITED, retry_after_s=_told(self.expected_wait_s())
                ) from exc
            raise
        self._waited(self._clock() - began_s)

    def _refuse_if_hopeless(self, ticket: Ticket) -> None:
        wait_s = self.expected_wait_s()
        if self._queue.waiting_of(ticket.tenant) >= self._max_per_tenant:
            message = "too many of your requests are waiting already"
            raise TooManyRequestsError(message, reason=Refusal.TENANT, retry_after_s=_told(wait_s))
        if len(self._queue) >= self.max_waiting:
            message = "too many requests are waiting already"
            raise OverloadedError(message, reason=Refusal.QUEUE, retry_after_s=_told(wait_s))
        if not self._queue:  # one may find out whether the pace is still what it was
            return
        if wait_s > ticket.patience_s:  # behind all of them; it may have a better place
            wait_s = self.expected_wait_s(self._queue.ahead_of(ticket.tenant, ticket.priority))
        if wait_s > ticket.patience_s:
            message = f"the request would wait for about {wait_s:.0f} s, beyond its deadline"
            raise OverloadedError(message, reason=Refusal.WAIT, retry_after_s=_told(wait_s))

    def _leave(self) -> None:
        """Give the place to the next one, if any: the count stays then."""
        now_s = self._clock()
        while (turn := self._queue.pop()) is not None:
            if not turn.done():
                gap_s, self._since_s = now_s - self._since_s, now_s
                self._interval_s += _SMOOTHING * (gap_s - self._interval_s) if self._interval_s else gap_s
                turn.set_result(None)
                return
        self.inside -= 1


def _told(wait_s: float) -> int:
    return max(1, math.ceil(min(wait_s, _LONGEST_S)))
