"""Starts the workers and keeps them there: one that ends, or hangs, is replaced, until the supervisor is told to stop.

Each slot has a listening socket of its own (SO_REUSEPORT: the kernel deals connections out evenly), bound here and
inherited by the worker of this slot. It stays open while a worker is replaced: connections that the kernel has queued
wait for the next one, and none is lost with the one that died.
"""

import ctypes
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baton.proxy.workers.listen import close
from baton.proxy.workers.slot import WorkerSlot

logger = logging.getLogger(__name__)

HANG_S: Final = 30.0  # a worker that has not been heard for so long is killed; it beats every second
GRACE_S: Final = 1.0  # beyond the time that workers need to stop; then they are killed
BACKOFF_S: Final = 0.1  # before a worker that ended soon is followed by another; doubled each time …
MAX_BACKOFF_S: Final = 5.0
SETTLED_S: Final = 10.0  # … until one has lived so long: its follower starts at once
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h

Serve = Callable[[WorkerSlot, Sequence[socket.socket]], None]


@dataclass(slots=True)
class WorkerProcess:
    """A slot and its process."""

    number: int
    pid: int = 0  # 0: no process
    starts: int = 0
    quick_ends: int = 0  # in a row
    started_s: float = 0.0
    heard_s: float = 0.0
    pulse: socket.socket | None = None  # our end of it
    due_s: float = 0.0  # when the next one is started

    def ended(self, now_s: float) -> float:
        """Note that the worker is gone; return how long to wait for the next."""
        self.pid = 0
        if self.pulse is not None:
            self.pulse.close()
            self.pulse = None
        self.quick_ends = 0 if now_s - self.started_s >= SETTLED_S else self.quick_ends + 1
        wait_s = min(BACKOFF_S * 2.0 ** min(self.quick_ends - 1, 20), MAX_BACKOFF_S) if self.quick_ends else 0.0
        self.due_s = now_s + wait_s
        return wait_s


class Supervisor:
    """One life: `run` returns when all workers have ended after a signal."""

    def __init__(
        self,
        serve: Serve,  # called in each worker; returns when it has been told to stop
        sockets: Sequence[Sequence[socket.socket]],  # bound, for each worker; closed when they are told to stop
        directory: Path,  # for what they share
        *,
        stop_timeout_s: float,  # that a worker may take to stop
        hang_s: float = HANG_S,  # that it may be silent
    ) -> None:
        self._serve = serve
        self._sockets = sockets
        self._directory = directory
        self._stop_timeout_s = stop_timeout_s
        self._hang_s = hang_s
        self._places = [WorkerProcess(number) for number in range(len(sockets))]
        self._told: list[int] = []  # signals
        self._looked_s = time.monotonic()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)

    def run(self) -> None:
        """Keep the workers running until SIGTERM or SIGINT, then let them end."""
        before = {number: signal.signal(number, self._note) for number in (*STOP_SIGNALS, signal.SIGCHLD)}
        wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            while not self._told:
                self._start_due()
                self._wait()
                self._reap()
                self._kill_hanging()
            self._stop()
        finally:
            self._kill()
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            for sockets in (*self._sockets, (self._woken, self._waker)):
                close(sockets)

    def _note(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self._told.append(number)

    # --- workers ---

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for place in self._places:
            if not place.pid and place.due_s <= now_s:
                self._start(place)

    def _start(self, place: WorkerProcess) -> None:
        place.starts += 1
        place.started_s = place.heard_s = time.monotonic()
        try:
            self._fork(place)
        except OSError as exc:  # too many processes or open files, too little memory: perhaps later
            wait_s = place.ended(time.monotonic())
            logger.error(
                "worker cannot be started", extra={"worker": place.number, "reason": exc.strerror, "after_s": wait_s}
            )
        else:
            logger.info("worker started", extra={"worker": place.number, "worker_pid": place.pid})

    def _fork(self, place: WorkerProcess) -> None:
        parent = os.getpid()
        place.pulse, theirs = socket.socketpair()
        for end in (place.pulse, theirs):
            end.setblocking(False)
        signals = {*STOP_SIGNALS, signal.SIGCHLD}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # the child must not take one with our handlers
        try:
            place.pid = os.fork()
            if not place.pid:
                self._be_worker(place, parent, theirs)
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    def _be_worker(self, place: WorkerProcess, parent: int, pulse: socket.socket) -> None:
        """Serve, and never return to the supervisor's own course."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in STOP_SIGNALS:
                signal.signal(number, exit_cleanly)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._woken.close()
            self._waker.close()
            _end_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOP_SIGNALS, signal.SIGCHLD})
            slot = WorkerSlot(
                number=place.number,
                workers=len(self._places),
                directory=self._directory,
                starts=place.starts,
                pulse=pulse.fileno(),
            )
            for slot_number, sockets in enumerate(self._sockets):
                if slot_number != place.number:
                    close(sockets)  # or they would go on queueing when their own worker has stopped
            self._serve(slot, self._sockets[place.number])
            status = 0
        except SystemExit as exc:
            status = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
        except BaseException:  # a process boundary: whatever it was, the supervisor starts another one
            logger.exception("worker failed", extra={"worker": place.number})
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _wait(self) -> None:
        """Wait for a signal, or until a worker is due or has been silent for too long; take in who is well."""
        pulses = {place.pulse: place for place in self._places if place.pulse is not None}
        due_s = [place.due_s for place in self._places if not place.pid]
        wait_s = min([self._hang_s / 4, *(max(0.0, when_s - time.monotonic()) for when_s in due_s)])
        for end in _readable([self._woken, *pulses], wait_s):
            with suppress(BlockingIOError, ConnectionError):
                if end.recv(4096) and end in pulses:
                    pulses[end].heard_s = time.monotonic()

    def _kill_hanging(self) -> None:
        """A worker that is stopped or stuck keeps its slot's connections waiting: another one shall serve them."""
        now_s = time.monotonic()
        overslept = now_s - self._looked_s >= self._hang_s / 2  # we were stopped ourselves, perhaps all of us
        self._looked_s = now_s
        for place in self._places:
            if overslept:
                place.heard_s = now_s
            elif place.pid and now_s - place.heard_s >= self._hang_s:
                logger.error("worker hangs", extra={"worker": place.number, "worker_pid": place.pid})
                os.kill(place.pid, signal.SIGKILL)
                place.heard_s = now_s

    def _reap(self) -> None:
        for place in self._places:
            if not place.pid:
                continue
            pid, status = os.waitpid(place.pid, os.WNOHANG)
            if pid:
                wait_s = place.ended(time.monotonic())
                if not self._told:
                    fields = {"worker": place.number, "worker_pid": pid, "status": os.waitstatus_to_exitcode(status)}
                    logger.error("worker ended, another one follows", extra={**fields, "after_s": wait_s})

    # --- the end ---

    def _stop(self) -> None:
        """Refuse connections and let the workers end what they have."""
        for sockets in self._sockets:
            close(sockets)  # each worker closes its own: then no connection can queue
        self._signal(signal.SIGTERM)
        deadline_s = time.monotonic() + self._stop_timeout_s + GRACE_S
        heard = len(self._told)
        while any(place.pid for place in self._places) and (left_s := deadline_s - time.monotonic()) > 0:
            _readable([self._woken], left_s)
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            if len(self._told) > heard:  # told to stop once more
                heard = len(self._told)
                self._signal(signal.SIGINT)
            self._reap()

    def _signal(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.pid:
                with suppress(ProcessLookupError):
                    os.kill(place.pid, number)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        for place in self._places:
            if place.pid:
                os.waitpid(place.pid, 0)
                place.pid = 0


def _readable(ends: Sequence[socket.socket], wait_s: float) -> list[socket.socket]:
    """Wait until some of these can be read, at most so long; `select` cannot take descriptors from 1024 on."""
    by_descriptor = {end.fileno(): end for end in ends}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(wait_s * 1000)]


def _end_with(parent: int) -> None:
    """Drain when the supervisor is gone, even if it was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def exit_cleanly(_signal: int, _frame: object) -> None:
    sys.exit(0)
