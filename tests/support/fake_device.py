"""An accelerator that is late: streams, events, and kernels that run some time after they were launched.

A CPU cannot show an early read, because a kernel has returned before the next line runs. This device can: a launch only
queues a Python function, and it runs later, in an order that is random (seeded) but legal, that is

- the operations of one stream run in the order in which they were issued,
- an operation behind `Event.wait` runs only after what the event had recorded by then,
- everything else is free, between streams and towards the host.

    device = FakeDevice(seed, Run.ON_WAIT)
    compute, copies = device.stream(), device.stream()
    compute.launch(lambda: write(block))        # queued; `block` still holds what it held
    event = device.event()
    event.record(compute)
    event.wait(copies)                          # `copies` goes on only behind it
    event.synchronize()                         # now `block` is written

What makes it run is the `Run`:

- `BACKGROUND`: a worker thread, late by up to `max_delay_s` per operation. For real threads; `close` ends the worker.
- `ON_WAIT`: a thread that waits, and then nothing runs but what it waits for: the most adversarial device that still
  keeps its promises. `advance` lets some more happen. Deterministic, given the seed and the order of calls.
- `ON_ADVANCE`: only `advance`; who waits blocks until another thread has advanced far enough. For tests that must show
  that a thread waits.

Names and meanings follow `torch.Stream` and `torch.Event`: an event that was never recorded has completed, one that is
recorded again stands for the later point, and a wait sees what had been recorded when it was issued. A kernel that
raises, and `lose`, break the device for good: every wait from then on raises `DeviceError` instead of hanging. `waits`
counts the blocking waits of the host by thread name, so that a test can say that a thread must not wait at all.
"""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self


class Run(Enum):
    """What makes a queued operation run."""

    BACKGROUND = auto()
    ON_WAIT = auto()
    ON_ADVANCE = auto()


class DeviceError(RuntimeError):
    """The device is broken or closed; what was queued may never have run."""


@dataclass(slots=True, eq=False)
class _Operation:
    stream: "Stream"
    position: int  # in its stream
    run: Callable[[], None] | None  # None: a point to be reached
    after: "_Operation | None" = None  # of another stream, to be done first
    done: bool = False

    @property
    def may_run(self) -> bool:
        """Whether the head of a stream is not held up by another stream."""
        return self.after is None or self.after.done


class Stream:
    """A queue of operations that run in order. Made by `FakeDevice.stream`."""

    def __init__(self, device: "FakeDevice") -> None:
        self.pending: deque[_Operation] = deque()
        self.issued = 0
        self._device = device

    def launch(self, kernel: Callable[[], None]) -> None:
        self._device.issue(self, kernel)

    def record_event(self) -> "Event":
        """Return a new event that completes with everything issued so far."""
        event = Event(self._device)
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether everything issued so far has run."""
        return not self.pending

    def synchronize(self) -> None:
        """Block until everything issued so far has run."""
        self._device.wait_for(self._device.issue(self, None))


class Event:
    """A point on a stream. Made by `FakeDevice.event` or `Stream.record_event`."""

    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self._point: _Operation | None = None

    def record(self, stream: Stream) -> None:
        """Complete with everything issued to `stream` so far."""
        self._point = self._device.issue(stream, None)

    def wait(self, stream: Stream) -> None:
        """Let what is issued to `stream` from now on run only after this point."""
        if self._point is not None:
            self._device.issue(stream, None, after=self._point)

    def query(self) -> bool:
        """Whether the point has been passed. Never blocks, and makes nothing run."""
        return self._point is None or self._point.done

    def synchronize(self) -> None:
        """Block until the point has been passed."""
        self._device.wait_for(self._point)


class FakeDevice:
    """See the head of this file. Every method may be called from any thread."""

    def __init__(self, seed: int, run: Run = Run.BACKGROUND, *, max_delay_s: float = 0.0005) -> None:
        self.waits: Counter[str] = Counter()  # by thread name
        self._random = random.Random(seed)
        self._run = run
        self._max_delay_s = max_delay_s
        self._streams: list[Stream] = []
        self._changed = threading.Condition()
        self._broken: str = ""
        self._cause: Exception | None = None
        self._worker = threading.Thread(target=self._work, name="fake-device", daemon=True)
        if run is Run.BACKGROUND:
            self._worker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream(self) -> Stream:
        with self._changed:
            self._streams.append(Stream(self))
            return self._streams[-1]

    def event(self) -> Event:
        """Make an event that has recorded nothing."""
        return Event(self)

    def advance(self, operations: int = 1) -> int:
        """Let up to so many operations run, random among those that may; return how many did."""
        assert self._run is not Run.BACKGROUND, "the worker runs everything"
        for ran in range(operations):
            with self._changed:
                ready = self._ready()
                if not ready or self._broken:
                    return ran
                self._execute(self._random.choice(ready))
        return operations

    def synchronize(self) -> None:
        """Block until everything issued so far, to any stream, has run."""
        for stream in list(self._streams):
            stream.synchronize()

    def lose(self, reason: str = "the device is lost") -> None:
        """Break down: nothing runs any more, and every wait raises."""
        with self._changed:
            self._broken = self._broken or reason
            self._changed.notify_all()

    def close(self) -> None:
        """Drop what has not run and end the worker. Idempotent."""
        self.lose("the device is closed")
        if self._worker.is_alive():
            self._worker.join(timeout=5)

    # --- for streams and events ---

    def issue(self, stream: Stream, run: Callable[[], None] | None, after: _Operation | None = None) -> _Operation:
        with self._changed:
            operation = _Operation(stream, stream.issued, run, after)
            stream.issued += 1
            stream.pending.append(operation)
            self._changed.notify_all()
            return operation

    def wait_for(self, point: _Operation | None) -> None:
        """Block until `point` is done. Raises `DeviceError` if it never will be."""
        with self._changed:
            self.waits[threading.current_thread().name] += 1
            if point is None:
                return
            if self._run is Run.ON_WAIT:
                self._run_until(point)
            self._changed.wait_for(lambda: point.done or self._broken)
            if self._broken and not point.done:
                raise DeviceError(self._broken) from self._cause

    # --- inside ---

    def _ready(self) -> list[_Operation]:
        return [s.pending[0] for s in self._streams if s.pending and s.pending[0].may_run]

    def _run_until(self, point: _Operation) -> None:
        """Run what `point` needs and nothing else, in random order."""
        last = self._needed(point)
        while not point.done and not self._broken:
            heads = [stream.pending[0] for stream in last if stream.pending]
            ready = [head for head in heads if head.may_run and head.position <= last[head.stream]]
            self._execute(self._random.choice(ready))

    @staticmethod
    def _needed(point: _Operation) -> dict[Stream, int]:
        """How far each stream must run for `point` to be reached: position of the last operation."""
        last: dict[Stream, int] = {}
        todo = [point]
        while todo:
            target = todo.pop()
            if target.done or last.get(target.stream, -1) >= target.position:
                continue
            last[target.stream] = target.position
            todo += [o.after for o in target.stream.pending if o.after and o.position <= target.position]
        return last

    def _execute(self, operation: _Operation) -> None:
        """Run the head of a stream. Only one thread runs operations at a time."""
        try:
            if operation.run is not None:
                operation.run()
        except Exception as exc:  # noqa: BLE001  # like a real kernel's fault, it shows at the next wait
            self._cause = exc
            self.lose(f"a kernel failed: {exc}")
            return
        with self._changed:
            operation.stream.pending.popleft()
            operation.done = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._broken or self._ready())
            time.sleep(self._random.uniform(0, self._max_delay_s))
            with self._changed:
                if self._broken:
                    return
                operation = self._random.choice(self._ready())
            self._execute(operation)
