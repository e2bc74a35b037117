"""What is waited for with a bound: a step's tensors, and events of the device.

A device's own wait takes no bound (vLLM #42897, #52247). So a thread of ours waits for the device, without one, and everybody
else waits for that thread, with one: the taker of `transfer` for a step's tensors, an `EventWatch` for events.
"""

import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

import torch

from baton.model_runner.tokens.errors import TokenTransferError
from baton.model_runner.tokens.lanes import LaneEvent

Tensors = Mapping[str, torch.Tensor]
TOKENS = "a step's tokens"
EVENT = "an event of the device"
_STOP_S = 5.0


class Handle:
    """The tokens of one step, on their way."""

    def __init__(
        self,
        tensors: Tensors,
        timeout_s: float,
        waited: Callable[[float], None],
        give_up: Callable[[str], TokenTransferError],
        what: str = TOKENS,
    ) -> None:
        """Make it.

        Args:
            tensors: On the host; theirs who read them, and without meaning until `synchronize` has returned.
            timeout_s: How long a reader waits.
            waited: Is told how long one has waited.
            give_up: Is told when one has waited for too long, and says what he gets.
            what: What is waited for, for that error.
        """
        self.tensors = tensors
        self._timeout_s = timeout_s
        self._waited = waited
        self._give_up = give_up
        self._what = what
        self._resolved = threading.Event()
        self._error: TokenTransferError | None = None

    def result(self) -> Tensors:
        """Wait for this step's tensors, once or often, in any thread.

        Raises:
            DeviceLostError: the device failed.
            TokenTimeoutError: they did not come in time.
        """
        self.synchronize()
        return self.tensors

    def synchronize(self) -> None:
        """Wait for them; vLLM asks its events like this."""
        began_s = time.perf_counter()
        if not self._resolved.wait(self._timeout_s):
            raise self._give_up(f"{self._what} did not come within {self._timeout_s:g} s")
        self._waited(time.perf_counter() - began_s)
        if self._error is not None:
            raise self._error

    def resolve(self, error: TokenTransferError | None = None) -> None:
        """Say that the tensors are there, or why they never will be."""
        self._error = error
        self._resolved.set()


class BoundedEvent:
    """An event of the device as vLLM uses it, whose wait has a bound."""

    def __init__(self, event: LaneEvent, wait_for: Callable[[LaneEvent], None]) -> None:
        self._event = event
        self._wait_for = wait_for

    def synchronize(self) -> None:
        """Wait until it has been passed.

        Raises:
            DeviceLostError: the device failed.
            TokenTimeoutError: it was not passed in time.
        """
        self._wait_for(self._event)

    def __getattr__(self, name: str) -> Any:
        """Record it, or let a stream wait for it: as the device's own."""
        return getattr(self._event, name)


class EventWatch:
    """A thread that sleeps for one event after the other. It begins with the first."""

    def __init__(self, adopt_thread: Callable[[], None], lose: Callable[[Exception], TokenTransferError]) -> None:
        """Make it.

        Args:
            adopt_thread: See `Lane`.
            lose: Is told what the device's error is, and says what the waiter gets.
        """
        self._adopt_thread = adopt_thread
        self._lose = lose
        self._asked: SimpleQueue[tuple[LaneEvent, Handle] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="token-events", daemon=True)

    def watch(self, event: LaneEvent, handle: Handle) -> None:
        """Resolve the handle when the event has been passed. One thread asks."""
        if self._thread.ident is None:
            self._thread.start()
        self._asked.put((event, handle))

    def stop(self) -> None:
        """End the thread. Idempotent, and bounded even if the device hangs."""
        self._asked.put(None)
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def _watch(self) -> None:
        adopted = False
        while (asked := self._asked.get()) is not None:
            event, handle = asked
            try:
                if not adopted:
                    self._adopt_thread()
                    adopted = True
                event.synchronize()
            except Exception as exc:  # noqa: BLE001  # thread boundary: whatever it is, who waits must get it
                handle.resolve(self._lose(exc))
            else:
                handle.resolve()
