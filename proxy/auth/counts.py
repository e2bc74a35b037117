"""What all workers count of one key: a few numbers that they share. Alone, or in a memory that each of them maps.

    [ until_s │ inside of worker 0 │ inside of worker 1 │ … ]

Each worker writes its own cell only. `until_s` belongs to all: two that let a request in at the very same moment may
count one of them. CLOCK_MONOTONIC is the machine's, so that the time means the same to all.
"""

import mmap
import os
from collections.abc import Callable, MutableSequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from baton.proxy.workers.slot import WorkerSlot

_CELL_BYTES: Final = 8


class Counts:
    """One key's numbers, as this worker sees and changes them."""

    __slots__ = ("_cells", "_own")

    def __init__(self, cells: MutableSequence[float], own: int = 0) -> None:
        """`cells` as above, `own` is this worker's number; what a former worker of that number had inside is gone."""
        self._cells = cells
        self._own = own + 1
        self._cells[self._own] = 0.0

    @property
    def inside(self) -> int:
        """How many requests all workers have."""
        return int(sum(self._cells[1:]))

    @property
    def own(self) -> int:
        """How many this worker has."""
        return int(self._cells[self._own])

    def add(self, number: int) -> None:
        self._cells[self._own] += number

    @property
    def until_s(self) -> float:
        """When what was asked for so far will have been paid with time."""
        return self._cells[0]

    @until_s.setter
    def until_s(self, when_s: float) -> None:
        self._cells[0] = when_s


def counts_of(slot: WorkerSlot | None) -> Callable[[str], Counts]:
    """Return what makes the counts of a key, by its name."""
    if slot is None:
        return lambda _: Counts([0.0, 0.0])
    directory = slot.directory / "keys"
    directory.mkdir(mode=0o700, exist_ok=True)
    return lambda name: Counts(_shared(directory / sha256(name.encode()).hexdigest(), slot.workers + 1), slot.number)


def _shared(path: Path, cells: int) -> MutableSequence[float]:
    """Map a file of numbers, zeros at first; the first worker makes it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, cells * _CELL_BYTES)
        return memoryview(mmap.mmap(descriptor, cells * _CELL_BYTES)).cast("d")  # type: ignore[return-value]
    finally:
        os.close(descriptor)
