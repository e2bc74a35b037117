"""CPU and memory of process trees, and of everything else on this machine: a figure taken on a busy machine is none."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import psutil

T = TypeVar("T")

_CPUCLOCK_SCHED: Final = 2  # of linux/posix-timers.h: all threads of a process, living and ended, in ns


class Memory(NamedTuple):
    """Memory of a process tree."""

    rss_bytes: int  # shared pages count in each process
    pss_bytes: int  # shared pages are divided among those that share them


class OtherCpu:
    """All user and system time of the machine less that of our own process tree; interrupts, which move packets, too."""

    def __init__(self, root: int) -> None:
        """`root` is the process whose descendants count as ours."""
        self._root = root
        self.restart()

    def restart(self) -> None:
        self._since_s = time.monotonic()
        self._others_s = self._others()

    def other_cores(self) -> float:
        return max(0.0, (self._others() - self._others_s) / (time.monotonic() - self._since_s))

    def _others(self) -> float:
        machine = psutil.cpu_times()
        ours = _read(tree(self._root), lambda process: sum(process.cpu_times()[:4]))  # with children that have ended
        return float(machine.user + machine.nice + machine.system - sum(ours))


def tree(root: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    return []


def descendants(root: int) -> list[int]:
    return [process.pid for process in tree(root)[1:]]


def named(root: int, beginning: str) -> list[int]:
    below = _read(tree(root)[1:], lambda process: (process.pid, process.name()))
    return [pid for pid, name in below if name.startswith(beginning)]


def cpu_s(root: int) -> float:
    """Return the CPU time of a process tree so far, that of children that have ended included."""
    return float(sum(_read(tree(root), lambda process: _own_cpu_s(process) + sum(process.cpu_times()[2:4]))))


def memory(root: int) -> Memory:
    parts = _read(tree(root), psutil.Process.memory_full_info)
    return Memory(sum(part.rss for part in parts), sum(part.pss for part in parts))


def _read(processes: Iterable[psutil.Process], read: Callable[[psutil.Process], T]) -> list[T]:
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(read(process))
    return found


def _own_cpu_s(process: psutil.Process) -> float:
    try:
        return time.clock_gettime(~process.pid << 3 | _CPUCLOCK_SCHED)
    except OSError:  # it has just ended
        return float(sum(process.cpu_times()[:2]))
