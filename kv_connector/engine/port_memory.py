"""Ports that receiving engines of this machine have used lately.

A sender that was paused in the middle of a push may write to its target's port long after the target's process has
gone. So a restarted decode node must not get its predecessor's port (trap 11). Mooncake draws ports at random from a
small range, and processes come and go: the memory is a file that all of them share.
"""

import fcntl
import tempfile
import time
from collections.abc import Iterable
from os import getuid
from pathlib import Path

KEPT_S = 3600.0


def shared_path() -> Path:
    """The file of this user on this machine."""
    return Path(tempfile.gettempdir()) / f"baton-receiving-ports-{getuid()}"


class PortMemory:
    """A file of `port time` lines; entries older than an hour are dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def recent(self) -> set[int]:
        """The ports used within the last hour."""
        try:
            return {port for port, _ in self._read(self._path.read_text())}
        except FileNotFoundError:
            return set()

    def add(self, ports: Iterable[int]) -> None:
        """Remember ports."""
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            file.seek(0)
            kept = [*self._read(file.read()), *((port, time.time()) for port in ports)]
            file.truncate(0)
            file.writelines(f"{port} {since:.0f}\n" for port, since in kept)

    @staticmethod
    def _read(text: str) -> list[tuple[int, float]]:
        oldest = time.time() - KEPT_S
        pairs = (line.split() for line in text.splitlines())
        return [(int(pair[0]), float(pair[1])) for pair in pairs if len(pair) == 2 and float(pair[1]) >= oldest]
