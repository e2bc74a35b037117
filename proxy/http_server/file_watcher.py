"""Following files that an operator replaces while we run: looked at once a second, read in a thread when they have changed, or could not be read.

Looking costs some microseconds a second and no request waits for it; a signal would have to reach every worker, and
nothing that replaces a Kubernetes secret or a certificate sends one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from ssl import SSLError
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
T = TypeVar("T")
_Stamp = tuple[int, int, int, int] | None


class FileWatcher(Generic[T]):
    """One thing that files hold, taken again whenever one of them has changed."""

    def __init__(
        self,
        what: str,
        paths: Sequence[Path],
        *,
        read: Callable[[], T],
        take: Callable[[T], None],
        failed: Callable[[bool], None] = lambda _: None,
        look_s: float = LOOK_S,
    ) -> None:
        """Read the files for the first time; the log calls what they hold `what`.

        `read` reads all of them, in a thread; it raises ValueError with a sentence if they cannot be used. `take` takes
        what was read, in the event loop. `failed` is told after each further reading whether the files cannot be used,
        so that what was there before stays.

        Raises:
            ValueError: they cannot be used.
        """
        self._what = what
        self._paths = paths
        self._read = read
        self._take = take
        self._failed = failed
        self._look_s = look_s
        self._stamps: list[_Stamp] | None = self._now()  # None: they could not be read, and are read again
        self._problem: str | None = None  # with the files, as they are now
        self._task: asyncio.Task[None] | None = None
        take(read())

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            if (stamps := self._now()) == self._stamps:
                continue
            try:
                self._take(await asyncio.to_thread(self._read))
            except (ValueError, OSError, RuntimeError) as exc:  # the last: no thread is left, for now
                self._stamps = None if _may_pass(exc) else stamps
                if str(exc) != self._problem:
                    self._problem = str(exc)
                    self._failed(True)
                    logger.error("%s cannot be used any more, what was read last stays: %s", self._what, exc)
            else:
                self._stamps, self._problem = stamps, None  # of before: what was written from then on will differ
                self._failed(False)

    def _now(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._paths]


def _may_pass(exc: Exception) -> bool:
    """Whether files could not be read; what they hold is wrong until they are written."""
    cause = exc.__cause__ if isinstance(exc, ValueError) else exc
    return isinstance(cause, OSError | RuntimeError) and not isinstance(cause, SSLError)


def _stamp(path: Path) -> _Stamp:
    """Return what differs when a file has been written, replaced or made readable; None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
