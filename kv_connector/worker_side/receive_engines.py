"""The receiving engines of a decode worker: made and destroyed by a thread of their own.

Destroying one is the fence. It takes 50 ms and can take a second, so neither control nor model thread does it.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

from baton.kv_connector.engine.base import EngineFactory, ReceivingEngine
from baton.kv_connector.layout.regions import Span

logger = logging.getLogger(__name__)

RETRY_S = 1.0


class ReceivingEngines:
    """Makes an engine per fence domain on request, and fences them on request."""

    def __init__(
        self,
        factory: EngineFactory,
        spans: list[Span],
        *,
        added: Callable[[int, str], None],
        fenced: Callable[[str], None],
    ) -> None:
        """`added(domain, session)` and `fenced(session)` are called from this object's thread."""
        self._factory = factory
        self._spans = spans
        self._added = added
        self._fenced = fenced
        self._engines: dict[str, ReceivingEngine] = {}
        self._making: set[int] = set()
        self._work: queue.SimpleQueue[int | str | None] = queue.SimpleQueue()
        self._again: deque[tuple[float, int | str]] = deque()  # what failed, and when it is tried again (monotonic)
        self._thread = threading.Thread(target=self._run, name="baton-fence", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and fence everything."""
        self._work.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._factory.close()

    def want(self, domain: int) -> None:
        """Make an engine for a domain, unless that has been asked for already."""
        if domain not in self._making:
            self._making.add(domain)
            self._work.put(domain)

    def fence(self, session: str) -> None:
        self._work.put(session)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                if isinstance(item, int):
                    self._make(item)
                else:
                    self._destroy(item)
            except Exception:  # thread boundary: without this thread nothing would ever be fenced again
                logger.exception("receiving engine %s: trying again in %g s", item, RETRY_S)
                self._again.append((time.monotonic() + RETRY_S, item))

    def _next(self) -> int | str | None:
        """Wait for an order, or for the time of one that failed."""
        if not self._again:
            return self._work.get()
        at_s, item = self._again[0]
        try:
            return self._work.get(timeout=max(at_s - time.monotonic(), 0.0))
        except queue.Empty:
            self._again.popleft()
            return item

    def _make(self, domain: int) -> None:
        engine = self._factory.receiver(self._spans)
        self._engines[engine.session] = engine
        self._added(domain, engine.session)
        self._making.discard(domain)  # not earlier: until it is added the domain looks as if it had none

    def _destroy(self, session: str) -> None:
        if engine := self._engines.get(session):
            engine.close()  # raises if it is not gone: then its blocks stay out of the pool
            del self._engines[session]
            logger.warning("fenced receiving engine %s", session)
        self._fenced(session)
