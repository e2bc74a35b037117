"""Sending through Mooncake: one `transfer_submit_write` per copy, watched with `transfer_check_status`.

The batch calls spin at a full core for the whole transfer, and their -1 does not tell which copies still go on (E1).
Nothing here waits or spins.

A push fails when it has taken too long of the time in which it was looked after. A poller that was kept from looking (a
stopped process, a machine out of memory) says nothing of the push, and copies beyond the first wait for polls.

What a poll costs: one status call (0.4 µs) while the oldest write is running, plus one per write that has finished
since. A status is never asked for again once it was final, since Mooncake frees the id.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from baton.kv_connector.engine.spans import Spans
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan

_RUNNING, _DONE = 0, 1  # `transfer_check_status`; -1 failed, -2 timed out
_LONGEST_GAP_S = 0.1  # between two polls of a poller that runs; more does not count
_NOT_SUBMITTED = (0, (1 << 64) - 1)  # `transfer_submit_write` has an unsigned result; older versions return -1


class MooncakePush:
    """Writes of one push call. Poll it from one thread at a time."""

    __slots__ = (
        "_copies",
        "_engine",
        "_greeted",
        "_left_s",
        "_polled_s",
        "_result",
        "_running",
        "_target",
        "_waiting",
    )

    def __init__(self, engine: "MooncakeSender", target: str, plan: CopyPlan, timeout_s: float) -> None:
        self._engine = engine
        self._target = target
        self._copies = iter(plan)
        self._waiting = len(plan)  # copies that have not been begun
        self._running: deque[int] = deque()
        self._left_s = timeout_s
        self._polled_s = engine.now()
        self._greeted = False
        self._result: bool | None = None

    def poll(self) -> bool | None:
        if self._result is None:
            now = self._engine.now()
            self._left_s -= min(now - self._polled_s, _LONGEST_GAP_S)
            self._polled_s = now
            self._result = self._advance()
            if self._result is False:
                self._engine.abandon(self._target, self._running)
        return self._result

    def _advance(self) -> bool | None:
        if not self._greeted:
            answered = self._engine.answered(self._target)
            if not answered:
                return False if self._left_s < 0 else answered
            self._greeted = True
        while self._running and (status := self._engine.status(self._running[0])) != _RUNNING:
            self._running.popleft()
            self._engine.ended(self._target)
            if status != _DONE:
                return False
        if self._waiting and not self._running:  # the places may be those of writes that failed pushes left behind
            self._engine.reap()
        while self._waiting and self._engine.begin(self._target):
            self._waiting -= 1
            if (write := self._engine.write(self._target, next(self._copies))) is None:
                self._engine.ended(self._target)
                return False
            self._running.append(write)
        if not self._running and not self._waiting:
            return True
        return False if self._left_s < 0 else None


class MooncakeSender:
    """A prefill rank's end. Any thread may submit; each push is polled by one thread."""

    def __init__(
        self,
        engine: Any,
        spans: Spans,
        *,
        max_in_flight: int,
        push_timeout_s: float,
        answered: Callable[[str], bool | None],
    ) -> None:
        """`answered` tells whether a target answers; `None` while that is being found out."""
        self.now = time.monotonic
        self._engine = engine
        self._spans = spans
        self._max_in_flight = max_in_flight
        self._push_timeout_s = push_timeout_s
        self.answered = answered
        self._lock = threading.Lock()
        self._in_flight: dict[str, int] = {}  # writes that Mooncake holds, per target
        self._abandoned: list[tuple[str, deque[int]]] = []  # writes of failed pushes, which may be going on

    def submit(self, target: str, plan: CopyPlan) -> MooncakePush:
        """See `SendingEngine.submit`. Copies beyond the target's capacity are begun by later polls."""
        self._spans.check_sources(plan)
        self.reap()
        push = MooncakePush(self, target, plan, self._push_timeout_s)
        push.poll()
        return push

    def close(self) -> None:
        """Destroy the engine. Pushes under way poll False; their bytes may still be in the kernel."""
        self._engine = None

    # --- for MooncakePush ---

    def begin(self, target: str) -> bool:
        """Count one more write to `target`, unless as many are in flight as may be."""
        with self._lock:
            in_flight = self._in_flight.get(target, 0)
            if in_flight < self._max_in_flight:
                self._in_flight[target] = in_flight + 1
                return True
            return False

    def ended(self, target: str) -> None:
        with self._lock:
            self._in_flight[target] -= 1
            if not self._in_flight[target]:
                del self._in_flight[target]

    def write(self, target: str, copy: Copy) -> int | None:
        """Hand one write to Mooncake; `None` if it refuses. Its first write to a target asks for its description."""
        if (engine := self._engine) is None:
            return None
        write: int = engine.transfer_submit_write(target, *copy)
        return None if write in _NOT_SUBMITTED else write

    def status(self, write: int) -> int:
        engine = self._engine
        return -1 if engine is None else engine.transfer_check_status(write)

    def abandon(self, target: str, writes: deque[int]) -> None:
        """Keep the unfinished writes of a failed push until they end, so that ids and capacity are not lost."""
        if writes:
            with self._lock:
                self._abandoned.append((target, writes))

    def reap(self) -> None:
        """Take back the places of abandoned writes that have ended."""
        with self._lock:
            abandoned, self._abandoned = self._abandoned, []
        for target, writes in abandoned:
            while writes and self.status(writes[0]) != _RUNNING:
                writes.popleft()
                self.ended(target)
            self.abandon(target, writes)
