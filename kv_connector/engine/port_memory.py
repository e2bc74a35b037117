"""Ports that receiving engines of this machine had last.

A sender that was paused in the middle of a push may write to its target's port long after the target's engine or
process has gone. So neither the next engine nor a restarted decode node must get that port. Mooncake draws ports at
random from a small range: the memory is a file that all processes share. The ports used longest ago are forgotten, by
number and not by time, so that there are always enough to draw from.
"""

import fcntl
import logging
import tempfile
from collections.abc import Iterable, Sequence
from os import getuid
from pathlib import Path

logger = logging.getLogger(__name__)


def shared_path() -> Path:
    return Path(tempfile.gettempdir()) / f"baton-receiving-ports-{getuid()}"


class PortMemory:
    """A file with a port at the head of each line, the last one used last, and the same in memory for this process."""

    def __init__(self, path: Path | None = None) -> None:
        """Remember in `path`, or, without one, for this process alone."""
        self._path = path
        self._own: list[int] = []

    def recent(self) -> set[int]:
        if self._path is None:
            return set(self._own)
        try:
            with self._path.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH)  # until the file is closed
                return {*self._own, *_parse(file.read())}
        except FileNotFoundError:
            return set(self._own)

    def add(self, ports: Iterable[int], keep: int) -> None:
        """Remember ports as those used last, and of all no more than `keep`."""
        added = list(ports)
        self._own = _newest([*self._own, *added], keep)
        if self._path is None:
            return
        try:
            with self._path.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # likewise
                file.seek(0)
                kept = _newest([*_parse(file.read()), *added], keep)
                file.truncate(0)
                file.writelines(f"{port}\n" for port in kept)
        except OSError as exc:  # a fence must not fail of it
            logger.warning("other processes do not hear which ports were used: %s: %s", self._path, exc)


def _parse(text: str) -> list[int]:
    heads = (line.split(maxsplit=1)[0] for line in text.splitlines() if line.strip())
    return [int(head) for head in heads if head.isdecimal()]


def _newest(ports: Sequence[int], keep: int) -> list[int]:
    return list(dict.fromkeys(reversed(ports)))[:keep][::-1]
