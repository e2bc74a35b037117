"""Whether a receiving engine answers at all, found out without making anybody wait.

Inside the first write to a target Mooncake asks it for its description, and waits 60 s for a process that accepts and
then says nothing: one that was stopped, or that a cut link hides. It does so in the thread that pushes to every decode
rank, and no setting shortens it. So a thread of its own asks each target first, with a bound, and no write is
handed to Mooncake before it has answered.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from baton.kv_connector.errors import EngineError

MAX_REMEMBERED: Final = 1024  # a fence gives a receiver a new name; the oldest are asked again


class PeerReachability:
    """Which targets have answered."""

    def __init__(self, ask: Callable[[str, int], object]) -> None:
        """`ask(host, port)` returns within a few seconds, or raises `EngineError`."""
        self._ask = ask
        self._lock = threading.Lock()
        self._answered: OrderedDict[str, bool | None] = OrderedDict()  # None: is being asked

    def answered(self, target: str) -> bool | None:
        """Say whether a target answers; `None` while that is being found out.

        False is said once: the next call has the target asked again.
        """
        with self._lock:
            if target not in self._answered:
                self._remember(target, None)
                try:
                    threading.Thread(target=self._greet, args=(target,), name="baton-greeting", daemon=True).start()
                except RuntimeError:  # the system has no more threads, for now: the next call tries again
                    del self._answered[target]
                    return None
            result = self._answered[target]
            if result is False:
                del self._answered[target]
            return result

    def _greet(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        result = False
        try:
            with suppress(EngineError, ValueError):
                self._ask(host.strip("[]"), int(port))
                result = True
        finally:  # also after a fault of ours: nothing waits for this target for ever
            with self._lock:
                self._remember(target, result)

    def _remember(self, target: str, result: bool | None) -> None:
        self._answered[target] = result
        while len(self._answered) > MAX_REMEMBERED:
            self._answered.popitem(last=False)
