"""The zygote: imports heavy modules once, then forks a process whenever `ForkServer` asks for one.

It has one thread, so forking is safe, and it speaks JSON lines over a socket that it inherits. When the other end
closes, for whatever reason, it kills every process that it made and ends; SIGINT and SIGTERM do not end it.
`forkserver.py` holds the other end and describes the messages.
"""

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


class Zygote:
    """Forks children on request and reports their ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._received = b""
        self._children: set[int] = set()
        self._wake, self._wake_by_signal = socket.socketpair()

    def run(self) -> None:
        self._wake_by_signal.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_by_signal.fileno(), warn_on_full_buffer=False)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # grandchildren that lose their parent become ours to reap
        self._send({"op": "ready"})
        try:
            self._serve()
        finally:
            _kill_descendants()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake in ready:
                    self._wake.recv(4096)
                    self._reap()
                if self._control in ready and not self._read():
                    return

    def _read(self) -> bool:
        try:
            data = self._control.recv(1 << 16)
        except ConnectionError:
            return False
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["op"] == "spawn":
                self._spawn(request)
            else:
                self._signal(request["pid"], request["signal"], group=request["group"])
                self._send({"op": "signalled", "id": request["id"]})
        return bool(data)

    def _spawn(self, request: Mapping[str, Any]) -> None:
        try:
            pid = os.fork()
        except OSError as exc:
            self._send({"op": "refused", "id": request["id"], "reason": str(exc)})
            return
        if pid == 0:
            self._become_child(request)
        self._children.add(pid)
        self._send({"op": "spawned", "id": request["id"], "pid": pid})

    def _signal(self, pid: int, number: int, *, group: bool) -> None:
        """Signal a child; it is not reaped yet, so the number cannot have gone to another process."""
        if pid not in self._children:
            return
        try:
            (os.killpg if group else os.kill)(pid, number)
        except ProcessLookupError:
            os.kill(pid, number)  # just forked, its own group not made yet

    def _reap(self) -> None:
        """Report every child that ended, after killing what is left of its process group."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if pid in self._children:
                _kill_group(pid)  # before the number is free: it still belongs to this group
            _, status = os.waitpid(pid, 0)
            if pid in self._children:
                self._children.remove(pid)
                self._send({"op": "exited", "pid": pid, "returncode": os.waitstatus_to_exitcode(status)})

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(ConnectionError):  # the next read says so too, and ends the loop
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _become_child(self, request: Mapping[str, Any]) -> NoReturn:
        """Leave the zygote's role and run the target; never return into its loop."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            for inherited in (self._control, self._wake, self._wake_by_signal):
                inherited.close()
            _set_up(request)
            code = _exit_code(resolve(request["target"])(**request["kwargs"]))
        except SystemExit as exc:
            code = _exit_code(exc.code)
        except BaseException:  # noqa: BLE001  # the process boundary: told in the log, then the process ends
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # no clean-up of what belongs to the zygote


def resolve(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def main(control_fd: int, prepare: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controlling process to handle
    # So is SIGTERM, which a service manager sends to all processes: leaving here would kill children that drain. It is
    # blocked, not ignored: a child that was just forked does not lose its own.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if prepare:
        resolve(prepare)()
    gc.collect()
    gc.freeze()  # shared pages stay shared: children's collectors do not touch these objects
    with socket.socket(fileno=control_fd) as control:
        Zygote(control).run()


def _set_up(request: Mapping[str, Any]) -> None:
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _redirect(request["log"])
    for name, value in request["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None  # the zygote's answer; TMPDIR may be another now
    if request["cpus"]:
        _pin(request["cpus"])


def _redirect(log: str | None) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if log:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    os.close(null)


def _pin(cpus: list[int]) -> None:
    os.sched_setaffinity(0, cpus)
    torch = sys.modules.get("torch")
    if torch is not None:  # OpenMP counted the cores when it was loaded, in the zygote
        torch.set_num_threads(len(cpus))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # a child that was just forked is not yet a group
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _kill_descendants() -> None:
    """Kill all children, then those of theirs that thereby become ours, until none is left."""
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    while pids := own.read_text().split():
        for pid in map(int, pids):
            _kill_group(pid)
            os.waitpid(pid, 0)


def _exit_code(value: object) -> int:
    """Read a return value or `SystemExit.code` as Python itself does at the end of a program."""
    if isinstance(value, int):
        return value & 0xFF
    if value is not None:
        print(value, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
