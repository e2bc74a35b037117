"""The thread that computes digests, so that neither the state machine nor the control thread waits for a device.

It is told what to read while the caller holds its lock, and answers without. One transfer after the other: digests are a check, not a second load on the device.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from baton.kv_connector.worker_side.digest import BlockDigests

logger = logging.getLogger(__name__)

T = TypeVar("T")
G = TypeVar("G")


class Part(NamedTuple):
    """Regions of one KV cache group, and the blocks in which they are digested."""

    blocks: Sequence[int]
    regions: Sequence[int]


def parts_of(regions: Iterable[int], group_of: Callable[[int], G], blocks: Callable[[G], Sequence[int]]) -> list[Part]:
    """Divide regions, in their order, into parts; `blocks(group)` are those of a group."""
    runs = ((group, list(some)) for group, some in groupby(regions, group_of))
    return [Part(blocks(group), some) for group, some in runs]


def blocks_of(parts: Iterable[Part]) -> list[int]:
    """Return all blocks of some parts, each once: no two groups share one."""
    return list(dict.fromkeys(block for part in parts for block in part.blocks))


class DigestThread(Generic[T]):
    """Computes the digests of the blocks of things, in the order in which they were asked for."""

    def __init__(
        self, compute: BlockDigests, done: Callable[[T, bytes], None], enter_device: Callable[[], None] = lambda: None
    ) -> None:
        """Make it; the thread calls `done` with each thing and its digests: none if computing them failed."""
        self._compute = compute
        self._done = done
        self._enter_device = enter_device
        self._work: queue.SimpleQueue[tuple[T, Sequence[Part]] | None] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="baton-digest", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; what has not been begun is dropped."""
        self._stopping = True
        self._work.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def ask(self, thing: T, parts: Sequence[Part]) -> None:
        """Have digests computed; they come one after the other, in the order of the parts and of their regions."""
        self._work.put((thing, parts))

    def _run(self) -> None:
        while (item := self._work.get()) is not None and not self._stopping:
            thing, parts = item
            digests = self._try(parts)
            try:
                self._done(thing, digests)
            except Exception:  # thread boundary: without this thread nothing would ever be verified again
                logger.exception("a digest could not be made use of")

    def _try(self, parts: Sequence[Part]) -> bytes:
        try:
            self._enter_device()
            return b"".join([self._compute(part.blocks, part.regions) for part in parts])
        except Exception:  # whatever a device raises: what cannot be verified must not pass for verified
            logger.exception("the digests of %d blocks could not be computed", len(blocks_of(parts)))
            return b""
