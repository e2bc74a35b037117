"""A thread that does what may take its time, behind a queue that is bounded: the event loop never waits for it."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Background(Generic[T]):
    """Handles what it is offered, batch by batch."""

    def __init__(self, name: str, handle: Callable[[list[T]], bool], *, most: int, batch: int, gather_s: float) -> None:
        """`handle` returns whether it could; `gather_s` is how long it waits for more before a batch."""
        self._handle = handle
        self._most = most
        self._batch = batch
        self._gather_s = gather_s
        self._queue: deque[T] = deque()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.done = 0
        self.failed = 0
        self.dropped = 0

    def start(self) -> None:
        self._thread.start()

    def offer(self, item: T) -> None:
        """Hand over something to be handled; it is dropped if too much waits already."""
        if len(self._queue) >= self._most or self._abandoned:
            self.dropped += 1
            return
        self._queue.append(item)
        if not self._wake.is_set():
            self._wake.set()

    def stop(self, timeout_s: float) -> None:
        """Handle what waits, for so long at most; idempotent."""
        if self._abandoned:
            return
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._abandoned = True
        self.dropped += len(self._queue)

    def _run(self) -> None:
        while not self._abandoned:
            self._wake.wait()  # for `stop` at the latest; the thread keeps no process from ending
            self._stopping.wait(self._gather_s)
            self._wake.clear()
            while self._queue and not self._abandoned:
                self._handle_some()
            if self._stopping.is_set():
                return

    def _handle_some(self) -> None:
        batch: list[T] = []
        while self._queue and len(batch) < self._batch:
            batch.append(self._queue.popleft())
        try:
            handled = self._handle(batch)
        except Exception:
            logger.exception("a batch could not be handled", extra={"queue": self._thread.name})
            handled = False
        if handled:
            self.done += len(batch)
        else:
            self.failed += len(batch)
