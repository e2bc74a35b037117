"""CPU and memory of a process and all that descend from it.

`utime + stime` in `/proc/*/stat` counts ticks of 10 ms. The same sum in ns, of all threads, living and ended, is what the
process's CPU clock says; children that ended and were waited for stand in their parent's `cutime + cstime`.
"""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED: Final = 2  # of linux/posix-timers.h: the whole process, as the scheduler counted it


class Stat(NamedTuple):
    """What one line of `/proc/<pid>/stat` says, as far as it is needed."""

    pid: int
    parent: int
    own_ticks: int  # utime + stime
    reaped_ticks: int  # cutime + cstime
    threads: int


class Memory(NamedTuple):
    """Of a process tree."""

    rss_bytes: int  # shared pages count in each process
    pss_bytes: int  # shared pages are divided among those that share them


def parse_stat(line: str) -> Stat:
    """Read a line of `/proc/<pid>/stat`; the name in it may hold anything, brackets and spaces included."""
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(")")[2].split()  # from the third field on
    utime, stime, cutime, cstime = (int(field) for field in fields[11:15])
    return Stat(int(pid), int(fields[1]), utime + stime, cutime + cstime, int(fields[17]))


def parse_memory(rollup: str) -> Memory:
    """Read `/proc/<pid>/smaps_rollup`."""
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in rollup.splitlines()[1:])}
    return Memory(kib["Rss"] * 1024, kib["Pss"] * 1024)


def descendants(root: int, stats: Iterable[Stat]) -> list[Stat]:
    """Return a process and all below it."""
    by_pid = {stat.pid: stat for stat in stats}
    children: dict[int, list[int]] = {}
    for stat in by_pid.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found, left = [], [root]
    while left:
        pid = left.pop()
        if pid in by_pid:
            found.append(by_pid[pid])
            left += children.get(pid, [])
    return found


def read_stats() -> list[Stat]:
    """Return every process that is there."""
    stats = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                stats.append(parse_stat((entry / "stat").read_text()))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
    return stats


def cpu_s(root: int) -> float:
    """Return the CPU time of a process tree so far."""
    total_s = 0.0
    for stat in descendants(root, read_stats()):
        total_s += _own_cpu_s(stat) + stat.reaped_ticks / _TICKS_PER_S
    return total_s


def memory(root: int) -> Memory:
    """Return the memory of a process tree."""
    parts = []
    for stat in descendants(root, read_stats()):
        try:
            parts.append(parse_memory((_PROC / str(stat.pid) / "smaps_rollup").read_text()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return Memory(sum(part.rss_bytes for part in parts), sum(part.pss_bytes for part in parts))


def others_cpu_s(roots: Sequence[int]) -> float:
    """Return the CPU time of all processes but some trees."""
    stats = read_stats()
    ours = {stat.pid for root in roots for stat in descendants(root, stats)}
    return sum(stat.own_ticks + stat.reaped_ticks for stat in stats if stat.pid not in ours) / _TICKS_PER_S


def _own_cpu_s(stat: Stat) -> float:
    try:
        return time.clock_gettime(~stat.pid << 3 | _CPUCLOCK_SCHED)
    except OSError:  # it ended meanwhile
        return stat.own_ticks / _TICKS_PER_S
