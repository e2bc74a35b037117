"""One line per request, if wanted: what was asked of whom, how it went and how long it took. Never a prompt, never a key.

The event loop puts a tuple into a bounded queue; a thread makes the line and writes it.
"""

import os
import sys
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.proxy.telemetry.log_format import LogFormat, as_json, as_text
from baton.proxy.tracing.background import Background

Which = Literal["off", "errors", "all"]
MOST: Final = 8192  # lines that wait
BATCH: Final = 32
GATHER_S: Final = 0.05
STOP_S: Final = 0.5
_LOGGER: Final = "baton.proxy.access"
_MESSAGE: Final = "request"


class Entry(NamedTuple):
    """What is said of a request."""

    time_s: float  # since 1970, at its end
    request_id: str
    tenant: str  # "": the request names none
    route: str
    path: str  # as in `x-baton-path`; "": not decided
    reason: str
    status: int  # 0: the client left before the head
    broken: bool  # the stream ended with an error event
    left: bool  # the client did not wait for the end
    prefill: str  # the last nodes that were asked
    decode: str
    attempts: int
    wait_s: float  # for admission
    ttft_s: float | None  # of a stream
    duration_s: float
    sent_bytes: int  # of the body
    trace_id: str  # "": not traced


class AccessLog(Collector):
    """The log of one process."""

    def __init__(self, which: Which, log_format: LogFormat, write: Callable[[bytes], object] | None = None) -> None:
        """`write` takes whole lines, in a thread; without it they go to stderr."""
        self.which = which
        self._form = _json if log_format == "json" else _text
        self._write = write or _to_stderr
        self._queue: Background[Entry] = Background(
            "access-log", self._handle, most=MOST, batch=BATCH, gather_s=GATHER_S
        )

    def wants(self, status: int, *, broken: bool) -> bool:
        """Say whether there is to be a line about such a request."""
        return self.which == "all" or (self.which == "errors" and (broken or not 0 < status < 400))

    def add(self, entry: Entry) -> None:
        self._queue.offer(entry)

    def start(self) -> None:
        if self.which != "off":
            self._queue.start()

    def stop(self) -> None:
        """Write what is left, for a moment; idempotent. Blocks."""
        self._queue.stop(STOP_S)

    def collect(self) -> list[Metric]:
        """Return how many lines came to nothing."""
        if self.which == "off":
            return []
        found = CounterMetricFamily("baton_access_log_dropped", "Lines of the access log that were not written")
        found.add_metric((), self._queue.dropped + self._queue.failed)
        return [found]

    def _handle(self, entries: list[Entry]) -> bool:
        for entry in entries:
            self._write(self._form(entry))
        return True


def _fields(entry: Entry) -> dict[str, Any]:
    fields = entry._asdict()
    del fields["time_s"]
    for name in ("wait_s", "ttft_s", "duration_s"):
        if fields[name] is not None:
            fields[name] = round(fields[name], 6)
    return fields


def _json(entry: Entry) -> bytes:
    return as_json(entry.time_s, "info", _LOGGER, _MESSAGE, _fields(entry)) + b"\n"


def _text(entry: Entry) -> bytes:
    told = {name: value for name, value in _fields(entry).items() if value not in ("", None)}
    return f"INFO:{_LOGGER}:{_MESSAGE}{as_text(told)}\n".encode()


def _to_stderr(line: bytes) -> None:
    """One write a line: those of several workers do not run into each other."""
    os.write(sys.stderr.fileno(), line)
