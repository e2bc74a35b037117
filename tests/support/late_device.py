"""A device that is late: launching costs the host little, executing costs the device much, and both have a clock.

`fake_device.py` shows in which *order* things may happen. This one shows *when*: a host thread that launches far ahead
of the device, events whose wait costs a wake-up, engines that copy beside the compute streams, and the legacy default
stream, which waits for every blocking stream and lets every blocking stream wait for it, as CUDA's does.

    host = VirtualHost()                      # or RealHost()
    device = LateDevice(host, launch_s=300e-6)
    stream = device.stream(blocking=False)    # as torch makes them for CUDA; its default stream is the legacy one
    stream.launch(write, cost_s=3e-3)         # the host spends 0.3 ms; `write` runs at the end of the 3 ms
    event = stream.record_event()
    event.query()                             # False
    event.synchronize()                       # 3 ms later, plus the wake-up
    event.done_at                             # the instant at which the device passed it

Streams are first in, first out and costs are known, so the instant at which an operation ends is known when it is issued:
there is no thread. Kernels (Python functions) run, in the order of their ends, as soon as a thread looks at the device.
Operations that need the same *engine* run one after the other, in the order of issue: there is one that computes, and one
per direction of copying.

`hang` lets the device stop where it is: what has not ended never will. `lose` breaks it: every look at it raises
`DeviceError`. Each thread has a current device, number 0 to begin with; `enter` sets it. Waiting for, or launching to, a
device that is not the thread's is what on CUDA opens a context on the wrong device: `strays` counts it by thread name.
`waits` counts blocking waits, `spun` those of events that are not `blocking`.

`LateTorch` is a `torch.get_device_module` over such devices. It is a simulation: it has no caches, no clocks of its own and no driver. It shows order and arithmetic, not speed.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Literal

from tests.support.fake_device import DeviceError
from tests.support.virtual_host import Host

__all__ = ["DeviceError", "LateDevice", "LateEvent", "LateStream", "LateTorch"]

Direction = Literal["to host", "to device"]


class LateStream:
    """Operations that run in order. Made by `LateDevice.stream`."""

    def __init__(self, device: "LateDevice", *, blocking: bool) -> None:
        self.device = device
        self.blocking = blocking
        self.end = -inf  # instant at which everything issued so far has run

    def launch(self, kernel: Callable[[], object] | None = None, *, cost_s: float = 0.0) -> None:
        """Queue a kernel that computes for `cost_s`; the host spends the device's `launch_s` and goes on."""
        self.device.issue(self, cost_s, "compute", kernel)

    def copy(self, size_bytes: int, direction: Direction, kernel: Callable[[], object] | None = None) -> None:
        """Queue a copy between pinned memory and the device; it runs beside kernels of other streams."""
        self.device.issue(self, size_bytes / self.device.copy_bytes_per_s, direction, kernel)

    def record_event(self, event: "LateEvent | None" = None) -> "LateEvent":
        """Let an event, a new one by default, complete with everything issued so far."""
        event = event or self.device.event()
        event.record(self)
        return event

    def wait_event(self, event: "LateEvent") -> None:
        """Let what is issued from now on run only after what the event stands for now."""
        self.end = max(self.end, event.done_at)

    def wait_stream(self, stream: "LateStream") -> None:
        """Let what is issued from now on run only after everything that the other stream has been given."""
        self.end = max(self.end, stream.end)

    def query(self) -> bool:
        """Whether everything issued so far has run."""
        return self.device.passed(self.end)

    def synchronize(self) -> None:
        """Block until everything issued so far has run."""
        self.device.wait_for(self.end, blocking=True)


class LateEvent:
    """A point on a stream. Made by `LateDevice.event` or `LateStream.record_event`."""

    def __init__(self, device: "LateDevice", *, blocking: bool = True) -> None:
        self.device = device
        self.blocking = blocking
        self.done_at = -inf  # instant at which the device passes it, if it does not hang before

    def record(self, stream: LateStream | None = None) -> None:
        """Complete with everything issued so far to `stream`, by default the thread's current one."""
        self.done_at = self.device.record(stream or self.device.current_stream())

    def wait(self, stream: LateStream) -> None:
        stream.wait_event(self)

    def query(self) -> bool:
        """Whether the point has been passed; at once."""
        return self.device.passed(self.done_at)

    def synchronize(self) -> None:
        """Block until the point has been passed; costs the device's `wake_s` beyond that."""
        self.device.wait_for(self.done_at, blocking=self.blocking)

    def elapsed_time(self, end: "LateEvent") -> float:
        """Return the time between this event and a later one, ms, as torch does."""
        return (end.done_at - self.done_at) * 1e3


class LateDevice:
    """See the head of this file. Every method may be called from any thread."""

    def __init__(
        self,
        host: Host,
        *,
        index: int = 0,
        launch_s: float = 5e-6,
        record_s: float = 1e-6,
        wake_s: float = 50e-6,
        copy_bytes_per_s: float = 25e9,
    ) -> None:
        """Make an idle device.

        Args:
            host: Whose clock it runs by.
            index: Its number among the host's devices.
            launch_s: What launching a kernel or a copy costs the host.
            record_s: What recording an event costs the host.
            wake_s: What waiting for an event costs beyond the event's own instant.
            copy_bytes_per_s: Of one copy engine.
        """
        self.waits: Counter[str] = Counter()  # blocking waits, by thread name
        self.spun: Counter[str] = Counter()  # of them, those of events that spin
        self.strays: Counter[str] = Counter()  # uses by threads whose current device is another one
        self.index = index
        self.copy_bytes_per_s = copy_bytes_per_s
        self._host = host
        self._costs = {"launch": launch_s, "record": record_s, "query": 1e-6, "wake": wake_s}
        self._engine_free_at = dict.fromkeys(("compute", "to host", "to device"), -inf)
        self._lock = threading.Lock()
        self._order = count()
        self._kernels: list[tuple[float, int, Callable[[], object]]] = []  # by the instant of their end
        self._hung_at = inf
        self._broken = ""
        self._cause: Exception | None = None
        self._streams: list[LateStream] = []
        self.default_stream = LateStream(self, blocking=True)  # the legacy one

    def stream(self, *, blocking: bool = True) -> LateStream:
        """Make a stream; only blocking ones and the legacy default stream wait for each other."""
        made = LateStream(self, blocking=blocking)
        self._streams.append(made)
        return made

    def event(self, *, blocking: bool = True) -> LateEvent:
        """Make an event that has recorded nothing; one that is not blocking spins while it is waited for."""
        return LateEvent(self, blocking=blocking)

    def enter(self) -> None:
        """Make this the calling thread's current device."""
        self._host.current.index = self.index

    def current_stream(self) -> LateStream:
        """Return the stream of this device that the calling thread issues to: the legacy one unless it chose another."""
        found: LateStream = getattr(self._host.current, f"stream_{self.index}", self.default_stream)
        return found

    @contextmanager
    def using(self, stream: LateStream) -> Iterator[None]:
        """Make a stream the calling thread's current one."""
        before = self.current_stream()
        setattr(self._host.current, f"stream_{self.index}", stream)
        try:
            yield
        finally:
            setattr(self._host.current, f"stream_{self.index}", before)

    def copy_and_wait(self, size_bytes: int, direction: Direction, kernel: Callable[[], object] | None = None) -> None:
        """Copy as `cudaMemcpy` with pageable memory does: on the legacy default stream, and the host waits."""
        self.default_stream.copy(size_bytes, direction, kernel)
        self.default_stream.synchronize()

    def synchronize(self) -> None:
        """Block until everything issued so far, to any stream, has run."""
        for stream in (self.default_stream, *self._streams):
            stream.synchronize()

    def hang(self) -> None:
        """Stop here: what has not ended never will, and nothing raises."""
        self._hung_at = self._host.now()

    def lose(self, reason: str = "the device is lost") -> None:
        """Break: every look at the device raises, waits that are under way too."""
        self._broken = self._broken or reason
        self._host.notify(self)

    # --- for streams and events ---

    def issue(self, stream: LateStream, cost_s: float, engine: str, kernel: Callable[[], object] | None) -> None:
        """Queue one operation, and spend what that costs the host."""
        self._spend("launch")
        with self._lock:
            start = max(self._host.now(), stream.end, self._others_end(stream))
            if cost_s:
                start = max(start, self._engine_free_at[engine])
                self._engine_free_at[engine] = start + cost_s
            end = stream.end = start + cost_s
            if kernel is not None:
                heappush(self._kernels, (end, next(self._order), kernel))

    def record(self, stream: LateStream) -> float:
        """Return the instant at which everything issued to a stream so far has run."""
        self._spend("record")
        with self._lock:
            return max(
                stream.end, self._others_end(stream) if stream is self.default_stream else -inf, self._host.now()
            )

    def passed(self, at: float) -> bool:
        """Whether the device has got to what ends at an instant. Raises `DeviceError` if it is broken."""
        self._spend("query")
        return self._reached(at)

    def wait_for(self, at: float, *, blocking: bool) -> None:
        """Block until the device has got to what ends at an instant. Raises `DeviceError` if it breaks before."""
        name = threading.current_thread().name
        self._notice_stray()
        self.waits[name] += 1
        if not blocking:
            self.spun[name] += 1
        if self._reached(at):
            return
        while not self._reached(at):
            self._host.wait(self, at if at <= self._hung_at else inf)
        self._sleep(self._costs["wake"])

    # --- inside ---

    def _reached(self, at: float) -> bool:
        """Whether the device has got to an instant. What ends by then has run: the clock is read first, and goes on."""
        reached = at <= min(self._host.now(), self._hung_at)
        self._run_kernels()
        return reached

    def _others_end(self, stream: LateStream) -> float:
        """When that has run what a stream waits for by itself: CUDA's rule of the legacy default stream."""
        if stream is self.default_stream:
            return max((other.end for other in self._streams if other.blocking), default=-inf)
        return self.default_stream.end if stream.blocking else -inf

    def _spend(self, cost: str) -> None:
        self._notice_stray()
        self._sleep(self._costs[cost])

    def _sleep(self, seconds: float) -> None:
        until = self._host.now() + seconds
        while seconds and self._host.now() < until:
            self._host.wait(None, until)

    def _notice_stray(self) -> None:
        if getattr(self._host.current, "index", 0) != self.index:
            self.strays[threading.current_thread().name] += 1

    def _run_kernels(self) -> None:
        """Run what has ended, in the order of the ends; then raise if the device is broken."""
        with self._lock:
            while self._kernels and self._kernels[0][0] <= min(self._host.now(), self._hung_at) and not self._broken:
                _, _, kernel = heappop(self._kernels)
                try:
                    kernel()
                except Exception as exc:  # noqa: BLE001  # like a real kernel's fault, it shows at the next look
                    self._broken, self._cause = f"a kernel failed: {exc}", exc
            if self._broken:
                raise DeviceError(self._broken) from self._cause


class LateTorch:
    """What `torch.get_device_module` returns, for late devices of one host; a device may be given as torch names it."""

    def __init__(self, host: Host, devices: Sequence[LateDevice]) -> None:
        self._host = host
        self._devices = devices

    def set_device(self, device: Any) -> None:
        self._find(device).enter()

    def current_device(self) -> int:
        return int(getattr(self._host.current, "index", 0))

    def current_stream(self, device: Any = None) -> LateStream:
        return self._find(device).current_stream()

    def default_stream(self, device: Any = None) -> LateStream:
        return self._find(device).default_stream

    def synchronize(self, device: Any = None) -> None:
        self._find(device).synchronize()

    def Event(self, *, blocking: bool = False, enable_timing: bool = False) -> LateEvent:  # noqa: N802  # torch's
        return self._find(None).event(blocking=blocking)

    def Stream(self, device: Any = None) -> LateStream:  # noqa: N802  # torch's name
        """See `torch.cuda.Stream`: it does not wait for the legacy default stream."""
        return self._find(device).stream(blocking=False)

    def set_stream(self, stream: LateStream) -> None:
        """See `torch.cuda.set_stream`."""
        setattr(self._host.current, f"stream_{stream.device.index}", stream)

    @contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        with stream.device.using(stream):
            yield

    def _find(self, device: Any) -> LateDevice:
        number = self.current_device() if device is None else getattr(device, "index", device)
        return self._devices[self.current_device() if number is None else number]
