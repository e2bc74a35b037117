"""A worker slot as the supervisor sees it: its process, since when it runs, and when the next one is due. No I/O but a close."""

import socket
from dataclasses import dataclass
from typing import Final

BACKOFF_S: Final = 0.1  # before a worker that ended soon is followed by another; doubled each time …
MAX_BACKOFF_S: Final = 5.0
SETTLED_S: Final = 10.0  # … until one has lived so long: its follower starts at once


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
