"""A transfer engine with memory of its own, for a moment: `baton doctor` finds out with it what a link is worth.

    python -m baton.kv_connector.engine.probe

A process of its own in the same place as the node (network, limits, environment), since Mooncake brings threads that
must not come into the node's, and its destructor holds the GIL. Its order comes as one line of JSON on stdin, its
answer goes to stdout as another; it ends when stdin is closed. It is `nice`, since it shares the node's cores.
"""

import ctypes
import mmap
import os
import select
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Final

import msgspec

from baton.contracts.probe import MIB, SIZE_BYTES, Order, Push, Pushed, Receiving
from baton.kv_connector.engine.base import SendingEngine
from baton.kv_connector.errors import ConnectorError
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan
from baton.kv_connector.layout.regions import Span

NICENESS: Final = 10
SMALL_BYTES: Final = 4096
SMALL_PUSHES: Final = 15  # of which the median is told
FIRST_SIZE_BYTES: Final = 256 * 1024
GROWTH: Final = 4
ENOUGH_S: Final = 0.1  # a push that takes so long tells the bandwidth well enough
POLL_S: Final = 0.00005
EXIT_FAILED: Final = 1


class PushFailedError(ConnectorError):
    """A push came to nothing."""


def measure(push: Callable[[int], float], *, size_bytes: int, idle_s: float, sleep: Callable[[float], None]) -> Pushed:
    """Push small and ever larger pieces, of at most `size_bytes`, wait for `idle_s`, and push once more.

    `push` pushes so many bytes and returns how long that took, s; it raises `PushFailedError`.
    """
    found = Pushed()
    try:
        found = Pushed(first_s=push(SMALL_BYTES))
        found = msgspec.structs.replace(found, latency_s=median(push(SMALL_BYTES) for _ in range(SMALL_PUSHES)))
        found = msgspec.structs.replace(found, bytes_per_s=_bytes_per_s(push, size_bytes))
        sleep(idle_s)
        return msgspec.structs.replace(found, after_idle_s=push(SMALL_BYTES))
    except PushFailedError as exc:
        return msgspec.structs.replace(found, problem=str(exc))


def _bytes_per_s(push: Callable[[int], float], size_bytes: int) -> float:
    size = min(FIRST_SIZE_BYTES, size_bytes)
    while (took_s := push(size)) < ENOUGH_S and size < size_bytes:
        size = min(size * GROWTH, size_bytes)
    return size / took_s


def pusher(engine: SendingEngine, source: int, order: Push) -> Callable[[int], float]:
    """Return what pushes so many bytes from `source` and waits for the end, asleep."""

    def push(size_bytes: int) -> float:
        ends = range(0, size_bytes, MIB)
        copies = [Copy(source + at, order.address + at, min(MIB, size_bytes - at)) for at in ends]
        began_s = time.monotonic()
        call = engine.submit(order.session, CopyPlan.of(copies))
        while (ok := call.poll()) is None:
            time.sleep(POLL_S)
        took_s = time.monotonic() - began_s
        if not ok:
            raise PushFailedError(f"a push of {size_bytes} B failed after {took_s:.1f} s")
        return took_s

    return push


def main() -> int:
    os.nice(NICENESS)
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    try:
        return _serve(order)
    except ConnectorError as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_FAILED


def _serve(order: Order) -> int:
    from baton.kv_connector.engine.mooncake import MooncakeFactory
    from baton.kv_connector.engine.port_memory import PortMemory, shared_path

    memory = mmap.mmap(-1, SIZE_BYTES)
    span: Span = (ctypes.addressof(ctypes.c_char.from_buffer(memory)), SIZE_BYTES)
    place = order.place
    factory = MooncakeFactory(host=place.host, protocol=place.protocol, ports=PortMemory(shared_path()))
    if isinstance(order.what, Push):
        push = pusher(factory.sender([span]), span[0], order.what)
        _say(measure(push, size_bytes=order.what.size_bytes, idle_s=order.what.idle_s, sleep=_wait))
    else:
        session = factory.receiver([span]).session
        _say(Receiving(session=session, address=span[0], size_bytes=SIZE_BYTES))
        _wait(order.what.seconds)
    return 0


def _wait(seconds: float) -> None:
    """Wait, but not for longer than anybody is there who waits for us: until stdin is closed."""
    stdin = select.poll()
    stdin.register(sys.stdin, select.POLLIN)
    stdin.poll(seconds * 1000)


def _say(answer: msgspec.Struct) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # destroying the engine would take a second, and the process is going anyway
