"""Wakes the decode node's engine when there is news of its transfers, so that it need not be found by looking.

vLLM's engine core sleeps 1 ms after every step that ran no model (`EngineCoreProc._process_engine_step`). A request
whose KV has just come pays for that twice: until a step takes notice, and again before the step that schedules it.
`IdleSleep` takes the place of that sleep and ends early on a word from the worker, which may live in another process.
It never sleeps longer, so whatever else the engine looks at between two steps is looked at as often as before.
"""

import logging
import select
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from baton.kv_connector.errors import ConnectorError

logger = logging.getLogger(__name__)

ENGINE_CORE = "vllm.v1.engine.core"
_PAUSE_S = 0.01  # what vLLM sleeps for longer than this is no pause between two steps
_AT_ONCE = 64  # words taken in one go


def wake_path(runtime_dir: Path) -> Path:
    return runtime_dir / "wake.sock"


class IdleSleep:
    """The engine's pause between steps; for its thread alone."""

    def __init__(self, path: Path) -> None:
        """Sleep as vLLM does, until `start`."""
        self._path = path
        self._socket: socket.socket | None = None
        self._poll = select.poll()  # `select` cannot take descriptors from 1024 on
        self._skip = False
        self._replaced: Any = None

    def start(self) -> None:
        """Listen for a `Waker`, and take the place of the `time` that vLLM's engine core calls `sleep` on.

        Raises `ConnectorError` if the path cannot be bound.
        """
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._path.unlink(missing_ok=True)  # of a predecessor that was killed
            listening.bind(str(self._path))
            self._path.chmod(0o600)
        except OSError as exc:
            listening.close()
            raise ConnectorError(f"cannot listen for the worker on {self._path}: {exc}") from exc
        self._socket = listening
        self._poll.register(listening, select.POLLIN)
        core: Any = sys.modules.get(ENGINE_CORE)
        if core is None or not hasattr(core, "time"):
            logger.warning("%s is not as expected: the engine looks for news every millisecond", ENGINE_CORE)
            return
        self._replaced = core.time
        core.time = SimpleNamespace(**(vars(core.time) | {"sleep": self.sleep}))

    def sleep(self, seconds: float) -> None:
        """Sleep, but not longer than until the next word from the worker, and not at all after `skip_next`."""
        if seconds > _PAUSE_S or self._socket is None:
            time.sleep(seconds)
            return
        timeout_s = 0.0 if self._skip else seconds
        self._skip = False
        if self._poll.poll(timeout_s * 1000):  # whole milliseconds, as vLLM's pause is
            _take_all(self._socket)

    def skip_next(self) -> None:
        """Something can be scheduled now: the next sleep returns at once."""
        self._skip = True

    def stop(self) -> None:
        """Give vLLM its own sleep back. Idempotent."""
        if self._replaced is not None:
            sys.modules[ENGINE_CORE].time = self._replaced  # type: ignore[attr-defined]  # put there by `start`
            self._replaced = None
        if self._socket is not None:
            self._poll.unregister(self._socket)
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)


def _take_all(words: socket.socket) -> None:
    """Several words are one; those beyond a bound end the next sleep."""
    for _ in range(_AT_ONCE):
        try:
            words.recv(1)
        except BlockingIOError:
            return


class Waker:
    """The worker's end of the socket on which `IdleSleep` waits."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket: socket.socket | None = None

    def start(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def wake(self) -> None:
        """End the engine's sleep; never waits. Where no process listens or much is unread, the engine looks in any case."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto(b"\0", self._path)

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
