"""Noticing that the client left, whatever the request is waiting for at that moment."""

import asyncio
from types import TracebackType

from baton.proxy.errors import ClientGoneError
from baton.proxy.http_server.client_protocol import Writer


class CancelOnDisconnect:
    """Runs a block for as long as the client stays; the request's body must have been read.

    Works as `asyncio.timeout` does: the block is cancelled at its current await, and the cancellation, being ours, ends
    here, as a `ClientGoneError`.
    """

    __slots__ = ("_is_gone", "_task", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._is_gone = False
        self._task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        if not self._writer.tell_when_gone(self._gone):
            raise ClientGoneError

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        self._writer.tell_when_gone(None)
        if self._is_gone and kind is asyncio.CancelledError:
            assert self._task is not None
            self._task.uncancel()
            raise ClientGoneError from exc

    def _gone(self) -> None:
        assert self._task is not None
        self._is_gone = True
        self._task.cancel()
