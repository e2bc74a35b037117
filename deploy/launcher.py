"""Runs a stack on this machine: start, wait until ready, announce, watch, stop.

A node that ends after the stack was announced is started again, within its `RestartBudget`; the proxy serves on with
the other nodes. Before the announcement, and for the proxy, one end stops everything.

On a CPU the nodes are forked from a zygote that has imported vLLM once; on accelerators, where a forked child could
not use the device, each is a program of its own. The proxy always is, and starts while the zygote imports. All of
them die with the launcher, even if that is killed.
"""

import http.client
import json
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from baton.deploy.forkserver import VLLM_PRELOAD, Child, ForkServer, ForkServerError
from baton.deploy.logs import LogFollower, cause, last_lines
from baton.deploy.memory import oom_kills
from baton.deploy.own_url import ask_own
from baton.deploy.stack import Member, Stack

MAX_RESTARTS: Final = 5  # of one node within the window; one more exit ends the stack
WINDOW_S: Final = 300.0
FIRST_DELAY_S: Final = 0.5  # doubled with each restart within the window


@dataclass(slots=True)
class RestartBudget:
    """The restarts of one node."""

    _times_s: deque[float] = field(default_factory=deque)  # of the restarts within the window

    @property
    def used(self) -> int:
        """Number of restarts within the window, as of the last call of `next_delay_s`."""
        return len(self._times_s)

    def next_delay_s(self, now_s: float) -> float | None:
        """Count one more exit; return the seconds to wait before the restart, None if the budget is spent."""
        while self._times_s and now_s - self._times_s[0] > WINDOW_S:
            self._times_s.popleft()
        if len(self._times_s) >= MAX_RESTARTS:
            return None
        delay_s: float = FIRST_DELAY_S * 2 ** len(self._times_s)
        self._times_s.append(now_s)
        return delay_s


TICK_S = 0.1
PROBE_TIMEOUT_S = 1.0
NODES_STOP_S = 3.0  # of the time to stop, kept for the nodes: before that the proxy finishes its requests
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXECUTE = "os:execvp"  # as a target: becomes a program, as a plain subprocess would, but one that dies with the zygote


class StackFailedError(Exception):
    """The stack cannot run; the message is for the person who started it."""


class StopAskedError(Exception):
    """Ctrl-C or SIGTERM: stop, whatever was being done."""


class StopFlag:
    """Whether a signal has asked for the stop.

    No `threading.Event`: its `set`, in a handler, wants the lock that the interrupted `wait` or `clear` may hold.
    """

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def clear(self) -> None:
        self.is_set = False

    def wait(self, longest_s: float) -> bool:
        """Sleep so long, unless it is set already; a signal does not cut the sleep short. Return whether it is set."""
        if not self.is_set:
            time.sleep(longest_s)
        return self.is_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run a stack."""

    runtime_dir: Path  # temporary files of all processes
    log_dir: Path
    start_timeout_s: float
    stop_timeout_s: float
    fork: bool = True  # fork nodes from one zygote; otherwise start each as a program
    prepare: str = VLLM_PRELOAD  # what that zygote imports
    zygote_environ: Mapping[str, str] | None = None
    node_environ: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)  # by name: its own changes
    everything: bool = False  # show all log lines
    restart_nodes: bool = False  # start a node again that ended after the stack was announced

    def log_of(self, name: str) -> Path:
        return self.log_dir / f"{name}.log"


class Launcher:
    """One run of a stack; `run` does it all."""

    def __init__(self, stack: Stack, settings: Settings, say: Callable[[str], None]) -> None:
        self._stack = stack
        self._settings = settings
        self._say = say
        self._stop_asked = StopFlag()
        self._children: dict[str, Child] = {}
        self._ready: set[str] = set()
        self._began_s = 0.0
        self._oom_kills = 0  # of the machine, before the start
        self._announced = False
        self._budgets = {member.name: RestartBudget() for member in stack.nodes}
        self._restart_at_s: dict[str, float] = {}  # node that ended → monotonic time of its restart
        self._restarted_s: dict[str, float] = {}  # node started again and not ready yet → monotonic time of its start
        self._programs = ForkServer(prepare="", log=settings.log_of("launcher"))
        environ = settings.zygote_environ
        zygote = ForkServer(prepare=settings.prepare, environ=environ, log=settings.log_of("zygote"))
        self._zygote = zygote if settings.fork else self._programs
        logs = {member.name: settings.log_of(member.name) for member in stack.members}
        self._logs = LogFollower(logs, say, everything=settings.everything)

    def run(self, announce: Callable[[], None]) -> None:
        """Run until Ctrl-C or SIGTERM, then stop everything; `announce` is called once, when everything is ready.

        Raises `StackFailedError`: a process died, or not all were ready in time. Everything is stopped by then.
        """
        with note_signals(self._stop_asked), ExitStack() as stack, suppress(StopAskedError):
            stack.callback(self.stop)
            self.start()
            self.wait_ready()
            announce()
            self._announced = True
            self.watch()

    def start(self) -> None:
        self._began_s = time.monotonic()
        self._oom_kills = oom_kills()
        self._logs.start()
        self._programs.start()
        if self._settings.fork:
            self._zygote.start()
        self._start_program(self._stack.proxy)
        try:
            while not self._zygote.ready:
                self._tick()
        except ForkServerError as exc:
            raise self._failure(str(exc)) from exc
        if self._settings.fork:
            self._say(f"vLLM imported after {self._elapsed_s():.1f} s")
        for member in self._stack.nodes:
            self._start_node(member)

    def wait_ready(self) -> None:
        """Wait for all nodes, then for the proxy. Raises `StackFailedError`: one died, or is late; `StopAskedError`."""
        for group in (self._stack.nodes, (self._stack.proxy,)):
            while waiting := [member for member in group if member.name not in self._ready]:
                for member in filter(is_ready, waiting):
                    self._ready.add(member.name)
                    self._say(f"{member.name} ready after {self._elapsed_s():.1f} s")
                self._tick()

    def watch(self) -> None:
        """Start nodes again that end, until Ctrl-C, or an end of the proxy or of a node that may not be started again."""
        while True:
            self._tick()
            self._start_due()
            self._check_restarted()

    def stop(self) -> None:
        self._stop_asked.clear()  # from now on it means: hurry
        deadline_s = time.monotonic() + self._settings.stop_timeout_s
        proxy = [child for name, child in self._children.items() if name == self._stack.proxy.name]
        self._end(proxy, deadline_s - min(NODES_STOP_S, self._settings.stop_timeout_s / 2))
        self._end([child for child in self._children.values() if child not in proxy], deadline_s)
        self._zygote.stop()  # kills what did not end
        self._programs.stop()
        self._logs.stop()

    def _end(self, children: list[Child], deadline_s: float) -> None:
        for child in children:
            child.terminate()
        while any(child.poll() is None for child in children):
            if time.monotonic() > deadline_s or self._stop_asked.wait(TICK_S / 2):
                return

    def _tick(self) -> None:
        if self._stop_asked.wait(TICK_S):
            raise StopAskedError
        for name, child in list(self._children.items()):
            if child.poll() is not None:
                if self._stop_asked.is_set:  # by a signal to all processes, which ended this one as well
                    raise StopAskedError
                self._handle_exit(name, child)
        if self._announced:
            return
        everybody = (*self._stack.nodes, self._stack.proxy)  # who waits for others comes last
        waiting = [member.name for member in everybody if member.name not in self._ready]
        if waiting and self._elapsed_s() > self._settings.start_timeout_s:
            raise StackFailedError(
                f"{', '.join(waiting)} not ready after {self._settings.start_timeout_s:g} s; "
                f"give it longer with --start-timeout-s{self._quote(waiting[0])}"
            )

    def _handle_exit(self, name: str, child: Child) -> None:
        """Plan the restart of a node that ended; raise if it may not be started again."""
        obituary = self._obituary(name, child)
        if not (self._settings.restart_nodes and self._announced and name in self._budgets):
            raise StackFailedError(obituary)
        budget, now_s = self._budgets[name], time.monotonic()
        delay_s = budget.next_delay_s(now_s)
        if delay_s is None:
            raise StackFailedError(f"{obituary}\n{name} has ended {MAX_RESTARTS + 1} times within {WINDOW_S:g} s")
        del self._children[name]
        self._restarted_s.pop(name, None)
        self._restart_at_s[name] = now_s + delay_s
        self._say(
            f"{obituary}\n{name} starts again in {delay_s:g} s (restart {budget.used} of {MAX_RESTARTS} within "
            f"{WINDOW_S:g} s); the other nodes go on serving"
        )

    def _start_due(self) -> None:
        for member in self._stack.nodes:
            if self._restart_at_s.get(member.name, float("inf")) <= time.monotonic():
                del self._restart_at_s[member.name]
                self._restarted_s[member.name] = time.monotonic()
                self._start_node(member)

    def _check_restarted(self) -> None:
        """Announce nodes that are ready again; kill one that is not in time, which counts as one more exit."""
        for member in self._stack.nodes:
            started_s = self._restarted_s.get(member.name)
            if started_s is None:
                continue
            if is_ready(member):
                del self._restarted_s[member.name]
                self._say(f"{member.name} ready again after {time.monotonic() - started_s:.1f} s")
            elif time.monotonic() - started_s > self._settings.start_timeout_s:
                del self._restarted_s[member.name]
                self._say(f"{member.name} is not ready {self._settings.start_timeout_s:g} s after its restart: killed")
                self._children[member.name].kill()

    def _start_node(self, member: Member) -> None:
        if self._settings.fork:
            self._spawn(self._zygote, member, f"{member.module}.__main__:main", {"argv": list(member.argv)})
        else:
            self._start_program(member)

    def _start_program(self, member: Member) -> None:
        argv = [sys.executable, "-m", member.module, *member.argv]
        self._spawn(self._programs, member, EXECUTE, {"file": argv[0], "args": argv})

    def _spawn(self, server: ForkServer, member: Member, target: str, kwargs: Mapping[str, object]) -> None:
        changes = {"TMPDIR": str(self._settings.runtime_dir), **self._settings.node_environ.get(member.name, {})}
        log = self._settings.log_of(member.name)
        try:
            child = server.spawn(target, kwargs=kwargs, env=changes, log=log, cpus=member.cpus)
        except ForkServerError as exc:
            raise self._failure(f"{member.name} cannot be started: {exc}") from exc
        self._children[member.name] = child
        cores = f", pinned to core {_numbers(member.cpus)}" if member.cpus else ""
        self._say(f"{member.name} starting on {member.url} (pid {child.pid}{cores})")

    def _failure(self, what: str) -> Exception:
        """What to raise where a fork server has ended: the signal that asked for the stop may have ended it as well."""
        return StopAskedError() if self._stop_asked.is_set else StackFailedError(what)

    def _obituary(self, name: str, child: Child) -> str:
        code = child.poll() or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        why = cause(self._settings.log_of(name))
        if kills := oom_kills() - self._oom_kills:
            why = f"the kernel has killed {kills} processes of this machine for want of memory since the start{why and '; '}{why}"
        return f"{name} {how} after {self._elapsed_s():.1f} s{why and f': {why}'}{self._quote(name)}"

    def _quote(self, name: str) -> str:
        log = self._settings.log_of(name)
        lines = last_lines(log)
        return "".join([f"; the end of {log}:", *(f"\n    {line}" for line in lines)]) if lines else ""

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s


def is_ready(member: Member) -> bool:
    at, path = member.listeners[0], member.ready_path
    is_encrypted = member.is_encrypted and bool(path)  # where we may not ask, an open port of our own process will do
    try:
        status, body = ask_own(at.host, at.port, path, PROBE_TIMEOUT_S, is_encrypted=is_encrypted)
    except (OSError, http.client.HTTPException):  # refused, timed out, or not HTTP yet
        return False
    return status == http.client.OK and uses_all(body)


def uses_all(readiness: bytes) -> bool:
    """Whether no node is named that is not in use: the proxy is ready as soon as it could serve at all, without a prefill node too.

    A node's answer is empty: it names no other node.
    """
    nodes = json.loads(readiness or b"{}").get("nodes", [])
    return all(node["state"] == "ready" for node in nodes)


def _numbers(cpus: tuple[int, ...]) -> str:
    return str(cpus[0]) if len(cpus) == 1 else f"{cpus[0]} to {cpus[-1]}"


@contextmanager
def note_signals(asked: StopFlag) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and a closed terminal set `asked` instead of raising wherever the program happens to be.

    What is ignored from the start stays so: SIGHUP under `nohup`, SIGINT in what a script runs in the background.
    """
    heeded = [n for n in STOP_SIGNALS if n == signal.SIGTERM or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
