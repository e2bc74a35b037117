"""Temporary folders with secrets and sockets, which must not outlive the process that owns them.

A process that is killed cannot remove its folder. The next start removes it: the owner holds a lock on a file inside
for as long as it, or a process forked from it, runs.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LOCK_NAME: Final = "owner.lock"
PREFIX: Final = "baton-"


@contextmanager
def owned_directory(name: str) -> Iterator[Path]:
    """Make a folder `baton-<name>-…` that only this user can read; remove it at the end, and those of dead owners now."""
    sweep_orphans()
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
    lock = _lock(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep_orphans() -> None:
    """Remove this user's folders in the temporary directory whose owner has ended."""
    for lock_path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK_NAME}"):
        with suppress(OSError):  # held by its owner, another user's, or removed by another start
            if lock_path.parent.is_symlink() or lock_path.parent.stat().st_uid != os.getuid():
                continue
            lock = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_path.parent, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a new file and only then give it the name that `sweep_orphans` looks for; return its descriptor.

    None where the file system has no locks (some network ones): such a folder is never taken for an orphan.
    """
    new = folder / f"{LOCK_NAME}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(folder / LOCK_NAME)
    except OSError:
        os.close(lock)
        return None
    return lock
