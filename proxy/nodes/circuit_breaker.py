"""A circuit breaker: whether a node that answers probes may get requests, judged by how its requests ended. Pure.

    CLOSED ──K failures in a row, or too large a share of a window──► OPEN ◄───────────────┐
      ▲                                                                │ its time is over,  │ the trial failed:
      │                                                                ▼ a request begins   │ wait twice as long
      └────────────────────────the trial succeeded──────────────── HALF_OPEN ───────────────┘

OPEN and HALF_OPEN are hard: nothing goes to the node but the trial, one request at a time. A trial that ends without a
verdict (its client left) gives its place to the next request.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from baton.contracts.configuration.schema import ProxyConfig

MIN_OUTCOMES: Final = 10  # in a window, before its share of failures means anything
BUCKETS: Final = 10  # of a window: it moves in such steps
MAX_OPEN_FACTOR: Final = 8  # repeated failures lengthen the wait for the next trial up to so many times


class BreakerState(StrEnum):
    """What the breaker thinks of its node."""

    CLOSED = "closed"  # healthy: requests flow
    OPEN = "open"  # isolated; once its time is over, the next request is a trial
    HALF_OPEN = "half_open"  # that trial is under way


class Breaker:
    """Judges one node in one role."""

    def __init__(
        self,
        config: ProxyConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[BreakerState, str], None] | None = None,
    ) -> None:
        self._config = config or ProxyConfig()
        self._clock = clock
        self._on_change = on_change
        self._window = _Window(self._config.breaker_window_s)
        self._in_a_row = 0
        self._open_until_s = 0.0
        self._waits = 0  # openings since it was last closed
        self._trial = 0  # number of the newest trial
        self.state = BreakerState.CLOSED
        self.reason = ""  # why it is not closed
        self.openings = 0  # since the node joined

    @property
    def admits(self) -> bool:
        if self.state is BreakerState.CLOSED:
            return True
        return self.state is BreakerState.OPEN and self._clock() >= self._open_until_s

    @property
    def trial_at_s(self) -> float:
        """When it admits a trial by itself, on its clock; 0 if it is not waiting for that."""
        return self._open_until_s if self.state is BreakerState.OPEN else 0.0

    def begin(self) -> int:
        """A request begins; return its number if it is a trial, otherwise 0."""
        if self.state is not BreakerState.OPEN or not self.admits:
            return 0
        self._trial += 1
        self._become(BreakerState.HALF_OPEN, self.reason)
        return self._trial

    def end(self, trial: int) -> None:
        """A request has ended, whatever was said of it before."""
        if trial == self._trial and self.state is BreakerState.HALF_OPEN:
            self._become(BreakerState.OPEN, self.reason)  # no verdict; its time is over already

    def succeeded(self) -> None:
        """A request was answered. One that began before the breaker opened proves nothing."""
        if self.state is BreakerState.HALF_OPEN:
            self.reset()
        elif self.state is BreakerState.CLOSED:
            self._in_a_row = 0
            self._window.add(self._clock(), failed=False)

    def failed(self, why: str, *, may_open: bool = True) -> None:
        """A request failed by the node's fault; without `may_open` (a bad node is better than none) it only counts.

        It may open with the next failure then.
        """
        if self.state is BreakerState.HALF_OPEN:
            self._open(f"the trial failed: {why}")
        elif self.state is BreakerState.CLOSED:
            self._in_a_row += 1
            self._window.add(self._clock(), failed=True)
            if may_open and (found := self._found()):
                self._open(f"{found}: {why}")

    def reset(self) -> None:
        """Forget everything: the trial succeeded, or there is another process behind the address."""
        self._in_a_row = self._waits = 0
        self._window.clear()
        if self.state is not BreakerState.CLOSED:
            self._become(BreakerState.CLOSED, "")

    def _found(self) -> str:
        """Say what speaks against the node; "" while that is not enough."""
        if self._in_a_row >= self._config.breaker_failures:
            return f"{self._in_a_row} requests in a row failed"
        share = self._window.share()
        return f"{share:.0%} of the latest requests failed" if share >= self._config.breaker_failure_share else ""

    def _open(self, reason: str) -> None:
        wait_s = self._config.breaker_open_s * min(2**self._waits, MAX_OPEN_FACTOR)
        self._open_until_s = self._clock() + wait_s
        self._waits = min(self._waits + 1, MAX_OPEN_FACTOR)
        self.openings += 1
        self._become(BreakerState.OPEN, reason)

    def _become(self, state: BreakerState, reason: str) -> None:
        self.state, self.reason = state, reason
        if self._on_change is not None:
            self._on_change(state, reason)


class _Window:
    """How many requests ended how, lately; counted in buckets, so that its size does not follow the traffic."""

    def __init__(self, length_s: float) -> None:
        self._bucket_s = length_s / BUCKETS
        self._buckets: deque[list[int]] = deque()  # [number of the bucket, outcomes, failures], oldest first

    def add(self, now_s: float, *, failed: bool) -> None:
        number = math.floor(now_s / self._bucket_s)
        while self._buckets and self._buckets[0][0] <= number - BUCKETS:
            self._buckets.popleft()
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append([number, 0, 0])
        self._buckets[-1][1] += 1
        self._buckets[-1][2] += failed

    def share(self) -> float:
        """Return the share of failures; 0 while there are too few outcomes to tell."""
        outcomes = sum(bucket[1] for bucket in self._buckets)
        return sum(bucket[2] for bucket in self._buckets) / outcomes if outcomes >= MIN_OUTCOMES else 0.0

    def clear(self) -> None:
        self._buckets.clear()
