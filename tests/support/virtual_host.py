"""A host on a virtual clock: real threads that run one at a time, and time that passes only while all of them wait.

Code that is not written for it runs on it: `driving` gives modules of ours a `time`, a `queue` and a `threading` whose
clock is this one. A thread runs until it waits; then the one that has waited for the earliest instant goes on, and the
clock stands at that instant. So the same program gives the same figures on any machine, however loaded.

    host = VirtualHost()
    with host, host.driving(sender_module):
        sender.start()              # a thread of this host
        host.sleep(0.1)             # 100 ms pass, for everything on this host, in no time
        sender.stop()

What it cannot show: two threads at once. A lock must not be held while its holder waits for the clock.
`RealHost` has the same methods on the machine's clock.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import inf
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol, Self
from unittest.mock import patch

LONGEST_S = 60.0  # of the machine's time, for one turn of a thread


class Host(Protocol):
    current: threading.local  # what a thread has set, such as its device

    def now(self) -> float: ...

    def wait(self, key: object, until: float = inf) -> None:
        """Sleep until an instant or the next `notify` of the same key; may return early."""
        ...

    def notify(self, key: object) -> None:
        """End the sleep of the threads that wait with this key."""
        ...


class RealHost:
    """The machine's clock and its threads."""

    def __init__(self) -> None:
        self.current = threading.local()
        self._changed = threading.Condition()

    def now(self) -> float:
        return time.monotonic()

    def wait(self, key: object, until: float = inf) -> None:  # a wake-up too many is no harm
        with self._changed:
            self._changed.wait(max(0.0, min(until - time.monotonic(), 0.05)))

    def notify(self, key: object) -> None:
        with self._changed:
            self._changed.notify_all()


class StuckError(AssertionError):
    """Every thread waits for another one: nothing will happen any more."""


class _EndOfHostError(BaseException):
    """Raised in the threads that are left when the host is closed; no `except Exception` keeps it."""


class _Parked:
    __slots__ = ("at", "error", "key", "order", "turn")

    def __init__(self, at: float, order: int, key: object) -> None:
        self.at, self.order, self.key = at, order, key
        self.turn = threading.Semaphore(0)
        self.error: BaseException | None = None


class VirtualHost:
    """See the head of this file. Made and closed by the thread that runs the test."""

    def __init__(self, *, wake_s: float = 0.0) -> None:
        """`wake_s`: how long it takes a thread to run after it was notified."""
        self.current = threading.local()
        self._wake_s = wake_s
        self._now = 1_000.0  # as on a machine, the origin means nothing
        self._order = count()
        self._parked: list[_Parked] = []
        self._main: _Parked | None = None
        self._main_thread = threading.get_ident()
        self._closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass for the calling thread."""
        self.wait(object(), self._now + max(0.0, seconds))

    def wait(self, key: object, until: float = inf) -> None:
        """See `Host`. Raises `StuckError` in the main thread if no thread will ever run again."""
        mine = _Parked(max(until, self._now), next(self._order), key)
        if threading.get_ident() == self._main_thread:
            self._main = mine
        self._parked.append(mine)
        self._pass_on()
        assert mine.turn.acquire(timeout=LONGEST_S), "a thread of the host waits for something that is not its clock"
        if mine.error is not None:
            raise mine.error

    def notify(self, key: object) -> None:
        for parked in self._parked:
            if parked.key is key and parked.at > self._now + self._wake_s:
                parked.at, parked.order = self._now + self._wake_s, next(self._order)

    def thread(self, target: Callable[..., object], name: str = "", args: Sequence[Any] = ()) -> "VirtualThread":
        """Make a thread of this host; it begins at the next wait of the one that starts it."""
        return VirtualThread(self, target, name, args)

    @contextmanager
    def driving(self, *modules: ModuleType) -> Iterator[None]:
        """Give modules this host's clock, queues and threads in place of Python's."""
        replaced = {
            "time": SimpleNamespace(monotonic=self.now, perf_counter=self.now, sleep=self.sleep),
            "queue": SimpleNamespace(SimpleQueue=lambda: VirtualQueue(self), Empty=queue.Empty),
            "threading": SimpleNamespace(
                **(
                    vars(threading)
                    | {"Thread": lambda **made: VirtualThread(self, made["target"], made.get("name", ""))}
                )
            ),
        }
        patches = [
            patch.object(module, name, replacement)
            for module in modules
            for name, replacement in replaced.items()
            if hasattr(module, name)
        ]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()

    def close(self) -> None:
        """End the threads that are left. Idempotent."""
        self._closing = True
        while any(parked is not self._main for parked in self._parked):
            victim = next(parked for parked in self._parked if parked is not self._main)
            victim.at, victim.error = -inf, _EndOfHostError()
            self.wait(self, self._now)

    # --- for threads ---

    def enter(self, run: Callable[[], None]) -> None:
        """Start a thread of the machine that gets its turns from here."""
        mine = _Parked(self._now, next(self._order), None)
        self._parked.append(mine)

        def body() -> None:
            mine.turn.acquire()
            try:
                if mine.error is None:
                    run()
            except _EndOfHostError:
                pass
            self._pass_on()

        threading.Thread(target=body, name=threading.current_thread().name, daemon=True).start()

    def _pass_on(self) -> None:
        following = min(self._parked, key=lambda parked: (parked.at, parked.order))
        if following.at == inf:
            assert self._main is not None
            following = self._main
            following.error = StuckError(f"at {self._now:.6f} s every thread waits for another one")
        else:
            self._now = max(self._now, following.at)
        self._parked.remove(following)
        following.turn.release()


class VirtualThread:
    """What the code under test takes for a `threading.Thread`."""

    def __init__(self, host: VirtualHost, target: Callable[..., object], name: str, args: Sequence[Any] = ()) -> None:
        self.name = name
        self._host, self._target, self._args = host, target, args
        self._alive = False

    def start(self) -> None:
        self._alive = True
        self._host.enter(self._run)

    def is_alive(self) -> bool:
        return self._alive

    def join(self, timeout: float | None = None) -> None:
        until = inf if timeout is None else self._host.now() + timeout
        while self._alive and self._host.now() < until:
            self._host.wait(self, until)

    def _run(self) -> None:
        threading.current_thread().name = self.name
        try:
            self._target(*self._args)
        finally:
            self._alive = False
            self._host.notify(self)


class VirtualQueue:
    """What the code under test takes for a `queue.SimpleQueue`."""

    def __init__(self, host: VirtualHost) -> None:
        self._host = host
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._host.notify(self)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # Python's
        until = inf if timeout is None else self._host.now() + timeout
        while not self._items:
            if not block or self._host.now() >= until:
                raise queue.Empty
            self._host.wait(self, until)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items
