"""Ends this process when a call of a step hangs; docs/decisions/0039.

    model thread      with watchdog.call("execute_model"): …    an entry in a dict: no clock, lock or system call
    output's thread   with watchdog.call("get_output"): …
    watchdog thread   every tick: add up how long each entry has been seen; one is overdue: a sentence, stacks, the end

Time counts only while the watchdog's own thread runs: a process that was stopped (SIGSTOP), or a machine that slept,
has not hung.
"""

import faulthandler
import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

EXIT_OVERDUE: Final = 71  # exit status of a process that the watchdog has ended
TICK_S: Final = 0.25  # at most, between two looks
GRACE_S: Final = 0.5  # for the other ranks to write their stacks too, before the first death ends them
LAST_RESORT_S: Final = 1.5  # for all of the end, if stderr cannot be written
_MAX_TICKS: Final = 2  # that the time between two looks may count as


class Call(NamedTuple):
    """A call that has not returned."""

    name: str
    thread_id: int


class Overdue(NamedTuple):
    """A call that has taken longer than the bound."""

    call: Call
    seconds: float  # while the watchdog looked


class Ages:
    """How long each call has been seen to run. Pure: what runs, and the time, are given."""

    def __init__(self, bound_s: float, tick_s: float) -> None:
        self._bound_s = bound_s
        self._tick_s = tick_s
        self._seen_s: dict[int, float] = {}
        self._last_s: float | None = None

    def find_overdue(self, calls: Mapping[int, Call], now_s: float) -> Overdue | None:
        """Add the time since the last look to the calls that ran then too; return the longest one if it is overdue.

        Calls are known by numbers that no other call ever has; `now_s` is a monotonic clock's.
        """
        passed_s = 0.0 if self._last_s is None else min(now_s - self._last_s, _MAX_TICKS * self._tick_s)
        self._last_s = now_s
        self._seen_s = {number: self._seen_s.get(number, -passed_s) + passed_s for number in calls}
        longest = max(self._seen_s, key=self._seen_s.__getitem__, default=None)
        if longest is None or self._seen_s[longest] < self._bound_s:
            return None
        return Overdue(calls[longest], self._seen_s[longest])


def end_process(overdue: Overdue, bound_s: float) -> None:
    """Log which call hangs, write the Python stacks of all threads to stderr, and end this process."""
    with suppress(OSError):  # the kernel's own timer: SIGALRM ends a process that cannot even write its log
        signal.setitimer(signal.ITIMER_REAL, LAST_RESORT_S)
    name, thread_id = overdue.call
    logger.error(
        "%s has not returned for %.1f s, and a step may take %g s (step_timeout_s): this worker process, %d, ends with status "
        "%d. Thread 0x%016x hangs; the stacks of all threads:",
        name,
        overdue.seconds,
        bound_s,
        os.getpid(),
        EXIT_OVERDUE,
        thread_id,
    )
    with suppress(OSError, ValueError, AttributeError):  # closed, or none
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)  # type: ignore[arg-type]  # None: AttributeError
    time.sleep(GRACE_S)
    os._exit(EXIT_OVERDUE)


class Watchdog:
    """A thread that looks after the calls of a worker's steps."""

    def __init__(self, bound_s: float, end: Callable[[Overdue, float], None] = end_process) -> None:
        """`end` is told of the first call that takes longer than the bound; once, in the watchdog's thread."""
        self._bound_s = bound_s
        self._end = end
        self._tick_s = max(0.01, min(TICK_S, bound_s / 8))
        self._calls: dict[int, Call] = {}
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="step-watchdog", daemon=True)

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_RESORT_S)

    @property
    def calls(self) -> dict[int, Call]:
        return self._calls.copy()  # atomic, as an iteration is not

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Watch what is done inside. Any thread."""
        number = next(self._numbers)
        self._calls[number] = Call(name, threading.get_ident())
        try:
            yield
        finally:
            del self._calls[number]

    def _run(self) -> None:
        ages = Ages(self._bound_s, self._tick_s)
        while not self._stopping.wait(self._tick_s):
            overdue = ages.find_overdue(self.calls, time.monotonic())
            if overdue is not None:
                self._end(overdue, self._bound_s)
                return
