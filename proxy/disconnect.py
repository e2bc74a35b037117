"""Noticing that the client left, whatever the request is waiting for at that moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from proxy.errors import ClientGoneError


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Run the block for as long as the client stays; the request's body must have been read.

    Works as `asyncio.timeout` does: the block is cancelled at its current await, and the cancellation, being ours,
    ends here.

    Raises:
        ClientGoneError: the client closed its connection first.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError as exc:
        if gone:
            task.uncancel()
            raise ClientGoneError from exc
        raise
    finally:
        watcher.cancel()
