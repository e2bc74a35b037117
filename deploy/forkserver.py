"""A fork server: pay for importing vLLM once, then start servers in a second each.

`ForkServer` is the controlling side. `zygote.py` runs in a process of its own, where it imports and forks. They speak
JSON lines over a socket:

    → {"op": "spawn", "id", "target", "kwargs", "env", "log", "cpus"}
    → {"op": "signal", "id", "pid", "signal", "group"}
    ← {"op": "ready"}   {"op": "spawned", "id", "pid"}   {"op": "refused", "id", "reason"}
    ← {"op": "signalled", "id"}   {"op": "exited", "pid", "returncode"}

Servers would outlive a parent that is killed; the zygote notices that its socket closed and kills them all.
"""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from baton.deploy.logs import last_lines

VLLM_PRELOAD = "baton.deploy.vllm_preload:prepare"
ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 180.0  # of the imports
STOP_TIMEOUT_S = 10.0


class ForkServerError(Exception):
    """The fork server is not running, did not come up, or could not fork."""


class Child:
    """A process that the zygote made; the same verbs as `subprocess.Popen`."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self._ended = threading.Event()
        self.pid = pid
        self.returncode: int | None = None  # negative: killed by that signal

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status. Raises `subprocess.TimeoutExpired`: it still runs."""
        if not self._ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL, group=True)

    def send_signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process, or to its whole group, and return when it is sent; none to one that has ended."""
        self._server._signal(self, number, group=group)

    def _end(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()


class ForkServer:
    """Starts processes that share one set of imports: what `prepare`, a `"module:function"`, imports in the zygote."""

    def __init__(
        self, *, prepare: str = VLLM_PRELOAD, environ: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self._prepare = prepare
        self._environ = environ
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._reader: threading.Thread | None = None
        self._ids = itertools.count()
        self._state = threading.Condition()  # guards all below
        self._ready = False
        self._closed = False
        self._replies: dict[int, dict[str, Any]] = {}
        self._children: dict[int, Child] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._ready = self._closed = False
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "baton.deploy.zygote", str(theirs.fileno()), self._prepare]
        environ = dict(os.environ if self._environ is None else self._environ)
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH"))))
        with theirs, ExitStack() as stack:
            output = stack.enter_context(self._log.open("ab")) if self._log else None
            # The zygote inherits this: SIGTERM, sent to all processes, would end it until its own `main` has blocked it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
            self._process = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C at a terminal is for the controlling process to handle
            )
        self._reader = threading.Thread(target=self._read_events, name="forkserver", daemon=True)
        self._reader.start()

    @property
    def ready(self) -> bool:
        """Whether the imports are done. Raises `ForkServerError`: they failed."""
        with self._state:
            if self._closed:
                raise ForkServerError(f"the fork server has ended{self._log_tail()}")
            return self._ready

    def wait_ready(self) -> None:
        """Wait until the imports are done. Raises `ForkServerError`: the zygote is not there, or took too long."""
        self._wait_for(lambda: self._ready)

    def spawn(
        self,
        target: str,
        *,
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str | None] | None = None,
        log: Path | None = None,
        cpus: Sequence[int] = (),
    ) -> Child:
        """Fork a process that calls `target(**kwargs)`, a `"package.module:function"`, and exits with what it returns.

        `env` changes the zygote's environment (None removes a variable), the output is appended to `log`; the process
        is pinned to `cpus`, if there are any. Raises `ForkServerError`.
        """
        self.wait_ready()
        reply = self._ask(
            {"op": "spawn", "target": target, "kwargs": dict(kwargs or {}), "env": dict(env or {})}
            | {"log": str(log) if log else None, "cpus": list(cpus)}
        )
        if reply["op"] == "refused":
            raise ForkServerError(f"cannot fork: {reply['reason']}")
        return self._children[reply["pid"]]

    def stop(self) -> None:
        if self._control is not None:
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            if not self._ready:
                self._process.kill()  # it is still importing, has no children and does not look at its socket
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._reader is not None:
            self._reader.join()
        if self._control is not None:
            self._control.close()
        self._process = self._control = self._reader = None

    def _signal(self, child: Child, number: int, *, group: bool) -> None:
        if child.returncode is None:
            with suppress(ForkServerError):  # no zygote, no children
                self._ask({"op": "signal", "pid": child.pid, "signal": int(number), "group": group})

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if self._control is None:
            raise ForkServerError("the fork server is not running")
        request_id = next(self._ids)
        line = json.dumps({**message, "id": request_id}).encode() + b"\n"
        with self._state:
            try:
                self._control.sendall(line)
            except OSError as exc:
                raise ForkServerError("the fork server has ended") from exc
        self._wait_for(lambda: request_id in self._replies)
        with self._state:
            return self._replies.pop(request_id)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        if self._control is None:
            raise ForkServerError("the fork server is not running")
        with self._state:
            self._state.wait_for(lambda: condition() or self._closed, START_TIMEOUT_S)
            if condition():
                return
            if self._closed:
                raise ForkServerError(f"the fork server has ended{self._log_tail()}")
        raise ForkServerError(f"the fork server did not answer within {START_TIMEOUT_S:g} s{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = last_lines(self._log, 10) if self._log else []
        return "; its last lines:\n" + "\n".join(lines) if lines else ""

    def _read_events(self) -> None:
        """Take in the zygote's messages until it closes its end; then every child has ended."""
        assert self._control is not None
        with self._control.makefile("rb") as lines, suppress(ConnectionError):
            for line in lines:
                self._handle(json.loads(line))
        with self._state:
            self._closed = True
            for child in self._children.values():
                if child.returncode is None:
                    # What is left: the zygote's own children die with it (PDEATHSIG).
                    with suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)
                    child._end(-signal.SIGKILL)
            self._state.notify_all()

    def _handle(self, event: dict[str, Any]) -> None:
        with self._state:
            if event["op"] == "ready":
                self._ready = True
            elif event["op"] == "exited":
                self._children[event["pid"]]._end(event["returncode"])
            else:
                if event["op"] == "spawned":
                    self._children[event["pid"]] = Child(self, event["pid"])
                self._replies[event["id"]] = event
            self._state.notify_all()
