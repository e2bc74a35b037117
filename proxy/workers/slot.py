"""One worker's place: its number, and the files that it shares with the others, replaced while they are read."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlot:
    """Stays the same when the worker in it is replaced."""

    number: int  # from 0
    workers: int  # how many there are
    directory: Path  # private to the supervisor and its workers
    starts: int = 1  # how many workers have had this slot, this one included
    pulse: int | None = None  # descriptor on which the supervisor hears that this worker is well

    def channel_of(self, number: int) -> Path:
        """Where a worker listens for the others."""
        return self.directory / f"{number}.sock"

    def counters_of(self, number: int) -> Path:
        """What all workers in one slot have counted."""
        return self.directory / f"{number}.json"

    def beat(self) -> None:
        """Tell the supervisor that this worker's loop turns."""
        if self.pulse is not None:
            with suppress(OSError):  # the supervisor does not read, or not in time: not this worker's to judge
                os.write(self.pulse, b".")

    @property
    def orders(self) -> Path:
        """What operators ordered, for all workers."""
        return self.directory / "orders.json"

    @property
    def others(self) -> list[int]:
        return [number for number in range(self.workers) if number != self.number]


def replace_file(path: Path, content: bytes) -> None:
    """Put a new file in the place of an old one: a reader sees one or the other, whole."""
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_bytes(content)
    fresh.replace(path)
