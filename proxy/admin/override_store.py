"""The file with what operators ordered: a change is made under a lock, and a process that starts reads it."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from baton.proxy.nodes.overrides import AdminOverrides
from baton.proxy.workers.slot import replace_file

LOCK_TIMEOUT_S: Final = 2.0  # it is held for a millisecond, unless its holder has been stopped
_RETRY_S: Final = 0.002


class OverrideStoreError(Exception):
    """The orders cannot be read or changed now: another worker has held the lock for too long, or the file fails."""


class OverrideStore:
    """What operators ordered, in one file with a lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_suffix(".lock")

    def read(self) -> AdminOverrides:
        """Return what is ordered now; nothing so far if no worker has written. Raises `OverrideStoreError`."""
        with _told():
            try:
                return msgspec.json.decode(self._path.read_bytes(), type=AdminOverrides)
            except FileNotFoundError:
                return AdminOverrides()

    def write(self, orders: AdminOverrides) -> None:
        """Replace it, with the lock held. Raises `OverrideStoreError`: it cannot be; the old one is still there."""
        with _told():
            replace_file(self._path, msgspec.json.encode(orders))

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the lock for the block, which should not wait. Raises `OverrideStoreError`: another holder keeps it."""
        with _told():
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._take(descriptor)
            yield
        finally:
            os.close(descriptor)  # lets go of the lock

    async def _take(self, descriptor: int) -> None:
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                while not _is_taken(descriptor):  # noqa: ASYNC110  # flock wakes no coroutine
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            raise OverrideStoreError(f"another worker holds {self._lock.name} for over {LOCK_TIMEOUT_S:g} s") from None


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise OverrideStoreError(f"the file of orders cannot be used: {exc.strerror}") from exc


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
