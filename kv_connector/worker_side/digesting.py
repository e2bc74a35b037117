"""The thread that computes digests.

It is told what to read while the caller holds its lock, and answers without: neither the state machine nor the control
thread waits for a device. One transfer after the other: digests are a check, not a second load on the device.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kv_connector.digest import BlockDigests

logger = logging.getLogger(__name__)

T = TypeVar("T")


class DigestThread(Generic[T]):
    """Computes the digests of the blocks of things, in the order in which they were asked for."""

    def __init__(self, compute: BlockDigests, done: Callable[[T, bytes], None]) -> None:
        """`done(thing, digests)` is called from this object's thread, with no digests where computing them failed."""
        self._compute = compute
        self._done = done
        self._work: queue.SimpleQueue[tuple[T, Sequence[int], Sequence[int]] | None] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="baton-digest", daemon=True)
        self.busy_s = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; what has not been begun is dropped."""
        self._stopping = True
        self._work.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def ask(self, thing: T, blocks: Sequence[int], regions: Sequence[int]) -> None:
        """Have the digests of `blocks` computed in some regions."""
        self._work.put((thing, blocks, regions))

    def _run(self) -> None:
        while (item := self._work.get()) is not None and not self._stopping:
            thing, blocks, regions = item
            begun = time.monotonic()
            digests = self._try(blocks, regions)
            self.busy_s += time.monotonic() - begun
            try:
                self._done(thing, digests)
            except Exception:  # thread boundary: without this thread nothing would ever be verified again
                logger.exception("a digest could not be made use of")

    def _try(self, blocks: Sequence[int], regions: Sequence[int]) -> bytes:
        try:
            return self._compute(blocks, regions)
        except Exception:  # whatever a device raises: what cannot be verified must not pass for verified
            logger.exception("the digests of %d blocks could not be computed", len(blocks))
            return b""
