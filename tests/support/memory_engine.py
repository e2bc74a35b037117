"""A transfer engine inside one process, with Mooncake's vices.

Writes land when the test says: at once (`automatic`), or with `land` and `land_all`. A push that failed is dirty, as
with Mooncake: what it has not written yet stays on the way and lands later, whatever the sender or its process does
until then, unless the receiver has been closed. Addresses are real ones of this process.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from baton.kv_connector.engine.spans import Spans
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan
from baton.kv_connector.layout.regions import Span


class MemoryPush:
    def __init__(self, sender: object, writes: int) -> None:
        self.sender = sender
        self.left = writes
        self.failed = False

    def poll(self) -> bool | None:
        if self.failed:
            return False
        return None if self.left else True


class _Write:
    """One copy on its way. It reads its source when it lands, or when its sender loses hold of it."""

    def __init__(self, target: str, copy: Copy, push: MemoryPush) -> None:
        self.target = target
        self.copy = copy
        self.push = push
        self._captured: bytes | None = None

    def leave_sender(self) -> None:
        """The bytes are in a socket buffer: what happens to the source no longer matters."""
        if self._captured is None:
            self._captured = ctypes.string_at(self.copy.src, self.copy.length)

    def land(self) -> None:
        """Write the bytes."""
        self.leave_sender()
        assert self._captured is not None
        ctypes.memmove(self.copy.dst, self._captured, self.copy.length)


class MemoryFabric:
    """The network between in-memory engines. Every method may be called from any thread."""

    def __init__(self, *, automatic: bool = True) -> None:
        """`automatic`: writes land as they are submitted, instead of when the test says."""
        self.automatic = automatic
        self._lock = threading.RLock()
        self._receivers: dict[str, Spans] = {}
        self._on_the_way: deque[_Write] = deque()
        self._fail_next = 0
        self._names = 0

    def factory(self, host: str = "memory") -> "MemoryFactory":
        """Make the engines of one process called `host`."""
        return MemoryFactory(self, host)

    def land(self, count: int = 1) -> int:
        """Let the oldest `count` writes land; return how many there were."""
        with self._lock:
            landed = 0
            while landed < count and self._on_the_way:
                self._land(self._on_the_way.popleft())
                landed += 1
            return landed

    def land_all(self) -> int:
        return self.land(len(self._on_the_way))

    def fail_next(self, pushes: int = 1) -> None:
        """Let the next pushes fail; their bytes land later."""
        with self._lock:
            self._fail_next += pushes

    # --- for the engines ---

    def open(self, host: str, spans: Spans) -> str:
        """Add a receiver; return its session, which no other ever has."""
        with self._lock:
            self._names += 1
            session = f"{host}:{self._names}"
            self._receivers[session] = spans
            return session

    def close(self, session: str) -> None:
        """Remove a receiver; what is on the way to it is lost, and its pushes fail."""
        with self._lock:
            self._receivers.pop(session, None)
            lost = [write for write in self._on_the_way if write.target == session]
            self._fail(lost)
            self._on_the_way = deque(write for write in self._on_the_way if write.target != session)

    def submit(self, sender: object, target: str, plan: CopyPlan) -> MemoryPush:
        """Put the writes of one push on the way."""
        with self._lock:
            push = MemoryPush(sender, len(plan))
            writes = [_Write(target, copy, push) for copy in plan]
            receiver = self._receivers.get(target)
            if receiver is None:
                push.failed = True
                return push
            accepted = [write for write in writes if receiver.holds(write.copy.dst, write.copy.length)]
            push.failed = len(accepted) < len(writes)
            self._on_the_way.extend(accepted)
            if self._fail_next:
                self._fail_next -= 1
                self._fail(accepted)
            elif self.automatic:
                for _ in accepted:  # they are the newest
                    self._land(self._on_the_way.pop())
            return push

    def let_go(self, sender: object) -> None:
        """A sender died: its bytes stay on the way, its pushes fail."""
        with self._lock:
            self._fail(write for write in self._on_the_way if write.push.sender is sender)

    @staticmethod
    def _land(write: _Write) -> None:
        write.land()  # its receiver is open: `close` has taken everything else off the way
        write.push.left -= 1

    @staticmethod
    def _fail(writes: Iterable[_Write]) -> None:
        for write in writes:
            write.leave_sender()
            write.push.failed = True


class MemorySender:
    """A prefill rank's end."""

    def __init__(self, fabric: MemoryFabric, spans: Spans) -> None:
        self._fabric = fabric
        self._spans = spans
        self._closed = False

    def submit(self, target: str, plan: CopyPlan) -> MemoryPush:
        self._spans.check_sources(plan)
        return self._fabric.submit(self, "" if self._closed else target, plan)

    def close(self) -> None:
        """Die: bytes on the way stay there."""
        self._closed = True
        self._fabric.let_go(self)


class MemoryReceiver:
    """One fence domain."""

    def __init__(self, fabric: MemoryFabric, session: str) -> None:
        self._fabric = fabric
        self._session = session

    @property
    def session(self) -> str:
        return self._session

    def close(self) -> None:
        self._fabric.close(self._session)


class MemoryFactory:
    """Makes the engines of one process."""

    def __init__(self, fabric: MemoryFabric, host: str) -> None:
        self._fabric = fabric
        self._host = host
        self._made: list[MemorySender | MemoryReceiver] = []

    def sender(self, spans: Sequence[Span]) -> MemorySender:
        sender = MemorySender(self._fabric, Spans(spans))
        self._made.append(sender)
        return sender

    def receiver(self, spans: Sequence[Span]) -> MemoryReceiver:
        receiver = MemoryReceiver(self._fabric, self._fabric.open(self._host, Spans(spans)))
        self._made.append(receiver)
        return receiver

    def close(self) -> None:
        while self._made:
            self._made.pop().close()
