"""Waits for the device on behalf of reservations: a peer hears of blocks once they have been zeroed (I6).

One thread for all steps; the events of a stream complete in order. Neither the model nor the control thread waits.
"""

import logging
import queue
import threading
from collections.abc import Callable

from kv_connector.sync import Awaitable

logger = logging.getLogger(__name__)

STOP_S = 5.0  # how long a stop waits for the device
DEVICE_FAILED = "the decode node's device failed before the blocks were zeroed"


class Zeroing:
    """Calls back when the device has passed an event, or never will."""

    def __init__(self, *, done: Callable[[list[str]], None], failed: Callable[[list[str], str], None]) -> None:
        """`done(request_ids)` and `failed(request_ids, reason)` are called from this object's thread."""
        self._done = done
        self._failed = failed
        self._work: queue.SimpleQueue[tuple[Awaitable, list[str]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="baton-zeroed", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; one that waits for a device that hangs ends with the process."""
        self._work.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_S)

    def after(self, event: Awaitable, request_ids: list[str]) -> None:
        """Call back about these requests when `event` has completed."""
        self._work.put((event, request_ids))

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            event, request_ids = item
            try:
                event.synchronize()
                self._done(request_ids)
            except Exception:  # thread boundary: whoever waits for these blocks must hear of it
                logger.exception("%s", DEVICE_FAILED)
                self._failed(request_ids, DEVICE_FAILED)
