"""How much CPU other processes of this machine use, or its host takes: a figure taken on a busy machine is none."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class OtherCpu:
    """All user and system time of the machine less that of our own process tree; interrupts, which move packets, too."""

    def __init__(self, root: int) -> None:
        """`root` is the process whose descendants count as ours."""
        self._root = root
        self.restart()

    def restart(self) -> None:
        """Begin a measurement."""
        self._since = time.monotonic()
        self._ticks = self._others()
        self._stolen = stolen_ticks(_machine())

    def other_cores(self) -> float:
        """Return the CPU that other processes have used since `restart`, in cores."""
        return max(0.0, self._cores(self._others() - self._ticks))

    def stolen_cores(self) -> float:
        """Return the CPU that the host has taken from this machine since `restart`, in cores; 0 where it does not say."""
        return self._cores(stolen_ticks(_machine()) - self._stolen)

    def _cores(self, ticks: int) -> float:
        return ticks / _TICKS_PER_S / (time.monotonic() - self._since)

    def _others(self) -> int:
        return machine_ticks(_machine()) - tree_ticks(_processes(), self._root)


def machine_ticks(stat: str) -> int:
    """Return the ticks spent in user and system mode, from the text of `/proc/stat`."""
    user, nice, system = (int(field) for field in stat.split(maxsplit=4)[1:4])
    return user + nice + system


def stolen_ticks(stat: str) -> int:
    """Return the ticks in which something wanted to run and the host ran another guest, from the text of `/proc/stat`."""
    return int(stat.split(maxsplit=9)[8])


def tree_ticks(processes: Mapping[int, tuple[int, int]], root: int) -> int:
    """Sum up the ticks of a process and its descendants.

    Args:
        processes: process id → parent's id and ticks, those of children that have ended included.
        root: process id.
    """
    total = 0
    for start, (_, ticks) in processes.items():
        pid, seen = start, 0
        while pid not in (root, 0) and seen < len(processes):
            pid, seen = processes.get(pid, (0, 0))[0], seen + 1
        total += ticks if pid == root else 0
    return total


def _machine() -> str:
    return Path("/proc/stat").read_text()


def _processes() -> dict[int, tuple[int, int]]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            found[int(folder.name)] = (int(fields[1]), sum(int(field) for field in fields[11:15]))
    return found
