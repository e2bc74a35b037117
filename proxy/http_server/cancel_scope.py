"""A block of a task that something other than time can end. `asyncio.timeout` does the same, at several times the cost."""

import asyncio


class CancelScope:
    """One such block: `cancel` cancels its task at its current await, and that cancellation ends with the block."""

    __slots__ = ("_cancelling", "_is_over", "_task")

    def __init__(self) -> None:
        """Begin the block, in its task."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._is_over = False  # it has been cancelled, or has ended

    def cancel(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._task.cancel()

    def end(self, kind: type[BaseException] | None) -> bool:
        """End the block, which raised this; return whether it did so for `cancel` alone, which does nothing from now on."""
        was_cancelled, self._is_over = self._is_over, True
        return was_cancelled and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError
