"""A block of a task that something other than time can end. `asyncio.timeout` does the same, at several times the cost."""

import asyncio
from types import TracebackType

from baton.proxy.errors import ClientGoneError
from baton.proxy.http_server.client_protocol import Writer


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


class CancelOnDisconnect:
    """Runs a block for as long as the client stays, and raises `ClientGoneError`; the request's body must have been read."""

    __slots__ = ("_scope", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._scope = CancelScope()

    def __enter__(self) -> None:
        if not self._writer.tell_when_gone(self._scope.cancel):
            raise ClientGoneError

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self._writer.tell_when_gone(None)
        if self._scope.end(kind):
            raise ClientGoneError from exc
