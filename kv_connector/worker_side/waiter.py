"""Waits for the device, so that no other thread has to.

Whatever needs the device to have got somewhere (a layer that is to be pushed, blocks that are being zeroed) is given to
the waiter together with an event, and comes back once the device has passed it. Events are waited for in the order in
which they came, which is that of their stream. Waiting sleeps (`sync.recorder`).

    model thread   watch(event, item) ──┐
    waiter         event.synchronize() ─┴─► passed(item, at_s)          or failed(item, reason)
    control thread     give_up(now) ──────────────────────────────────► failed(item, reason)

No device offers a wait with a bound. So the thread may wait for ever, and the bound is kept by others: `give_up` ends
the items that the device has not got to for `patience_s`, and `stop` leaves a thread that does not come back. Each item
comes back at most once, and never after `stop`.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from baton.kv_connector.worker_side.sync import DeviceEvent

logger = logging.getLogger(__name__)

STOP_S = 5.0  # how long a stop waits for the device
FAILED = "the device failed"
STUCK = "the device made no progress"

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Watched(Generic[T]):
    event: DeviceEvent
    item: T
    since: float  # s, monotonic


class DeviceWaiter(Generic[T]):
    def __init__(
        self,
        name: str,
        *,
        enter_device: Callable[[], None],
        passed: Callable[[T, float], None],
        failed: Callable[[T, str], None],
        patience_s: float,
    ) -> None:
        """Make it; `start` starts the thread.

        Args:
            name: Of the thread.
            enter_device: Makes the device current in the thread that calls it: a new thread's would be the first.
            passed: Gets an item, and when the device had passed its event (s, monotonic); called by the thread.
            failed: Gets an item whose event will not be passed, and why; called by the thread or by `give_up`.
            patience_s: How long the device may take from one event to the next.
        """
        self._enter_device = enter_device
        self._entered = False
        self._passed = passed
        self._failed = failed
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._pending: deque[_Watched[T]] = deque()  # that have not come back, oldest first
        self._progress_s = 0.0  # when the device had last passed an event
        self._work: queue.SimpleQueue[_Watched[T] | None] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and let nothing come back any more; one that waits for a device that hangs is left behind."""
        with self._lock:
            self._stopping = True
            self._pending.clear()
        self._work.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_S)

    def watch(self, event: DeviceEvent, item: T) -> None:
        """Give `item` back when the device has passed `event` (any thread)."""
        watched = _Watched(event, item, time.monotonic())
        with self._lock:
            if self._stopping:
                return
            self._pending.append(watched)
        self._work.put(watched)

    def give_up(self, now: float) -> None:
        """End the items for which the device has had `patience_s` since it last passed an event (any thread)."""
        while (watched := self._take_overdue(now)) is not None:
            logger.error("%s for %g s", STUCK, self._patience_s)
            self._failed(watched.item, f"{STUCK} for {self._patience_s:g} s")

    def wait_for_next(self, *, block: bool = True) -> bool:
        """Wait for the oldest event and give its item back: the thread's work. False: stopped, or nothing to wait for."""
        try:
            watched = self._work.get(block=block)
        except queue.Empty:
            return False
        if watched is None:
            return False
        try:
            if not self._entered:
                self._enter_device()
                self._entered = True
            watched.event.synchronize()
            at_s, failure = time.monotonic(), ""
        except Exception:  # whatever a device raises: what it did not finish must not be made use of
            logger.exception("%s", FAILED)
            at_s, failure = time.monotonic(), FAILED
        if not self._settle(watched, at_s):
            return True
        try:
            if failure:
                self._failed(watched.item, failure)
            else:
                self._passed(watched.item, at_s)
        except Exception:  # thread boundary: others wait for the device, too
            logger.exception("what waited for the device could not go on")
            self._failed(watched.item, FAILED)
        return True

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.wait_for_next()
            except Exception:  # thread boundary, likewise
                logger.exception("what waited for the device could not be given up")

    def _settle(self, watched: _Watched[T], at_s: float) -> bool:
        """Whether the item has not come back yet; it has now."""
        with self._lock:
            self._progress_s = at_s
            if watched not in self._pending:
                return False  # given up, or stopped
            self._pending.remove(watched)
            return True

    def _take_overdue(self, now: float) -> _Watched[T] | None:
        with self._lock:
            if self._pending and now - max(self._pending[0].since, self._progress_s) > self._patience_s:
                return self._pending.popleft()
            return None
