"""CPU and memory of process trees, and of everything else on this machine: a figure taken on a busy machine is none."""

import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import psutil

T = TypeVar("T")

_CPUCLOCK_SCHED: Final = 2  # of linux/posix-timers.h: all threads of a process, living and ended, in ns


class Memory(NamedTuple):
    """Of a process tree."""

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
        self._stolen_s = psutil.cpu_times().steal

    def other_cores(self) -> float:
        return max(0.0, self._cores(self._others() - self._others_s))

    def stolen_cores(self) -> float:
        """Return the CPU that the host has taken from this machine since `restart`, in cores; 0 where it does not say."""
        return self._cores(psutil.cpu_times().steal - self._stolen_s)

    def _cores(self, seconds: float) -> float:
        return seconds / (time.monotonic() - self._since_s)

    def _others(self) -> float:
        machine = psutil.cpu_times()
        return float(machine.user + machine.nice + machine.system) - sum(_read(tree(self._root), _with_children_s))


class Quiet:
    """Makes measurements again that the host of this machine has disturbed."""

    def __init__(self, meter: OtherCpu, max_stolen_cores: float, tries: int) -> None:
        """Of each measurement `tries` are made at most; the last one counts, however it was."""
        self._meter = meter
        self._max_stolen_cores = max_stolen_cores
        self._tries = tries
        self.repeated = 0
        self.stolen_cores = 0.0  # most, of what counts

    async def measure(self, once: Callable[[], Awaitable[T]], forget: Callable[[], None] = lambda: None) -> T:
        """Measure until nothing disturbed it; `forget` undoes what a disturbed call of `once` has left behind."""
        for left in reversed(range(self._tries)):
            self._meter.restart()
            found = await once()
            stolen = self._meter.stolen_cores()
            if not left or stolen <= self._max_stolen_cores:
                self.stolen_cores = max(self.stolen_cores, stolen)
                return found
            forget()
            self.repeated += 1
            print(f"the host took {stolen:.2f} cores: once more", file=sys.stderr)
        raise AssertionError("unreachable: `tries` is 1 or more")


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


def _with_children_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:4]))  # user, system, and both of children that have ended


def _own_cpu_s(process: psutil.Process) -> float:
    try:
        return time.clock_gettime(~process.pid << 3 | _CPUCLOCK_SCHED)
    except OSError:  # it has just ended
        return float(sum(process.cpu_times()[:2]))
