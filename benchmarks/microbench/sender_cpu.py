"""How much CPU sending costs while the link is the bottleneck: of the sender thread, and of everything in its process."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.harness import HostMemory
from benchmarks.microbench.figures import Figure, spread
from benchmarks.microbench.figures import Target as Goal
from benchmarks.microbench.pushes import CACHE_BYTES, MIB, Pusher
from benchmarks.microbench.rank import Target

LINK_MBIT_S: Final = 200
DESCRIPTOR_BYTES: Final = (64 << 10, 1 << 20)
PUSH_BYTES: Final = 48 * MIB  # 2 s at 200 Mbit/s
WARM_UP_BYTES: Final = 8 * MIB
LAZY_POLL_S: Final = 0.1  # how often the bench looks for the COMMIT
ROUNDS: Final = 3
AT_MOST_PERCENT: Final = 10.0
_SENDER: Final = "baton-sender"  # name of the thread


class Usage(NamedTuple):
    """CPU used during one transfer, in % of a core."""

    transfer_s: float
    threads: dict[str, float]  # Python's, by name
    process: float  # all threads, Mooncake's too


def measure(target: Sequence[Any], host: str) -> Iterator[Figure]:
    memory = HostMemory(CACHE_BYTES)
    with tempfile.TemporaryDirectory() as folder:
        for descriptor_bytes in DESCRIPTOR_BYTES:
            pusher = Pusher(descriptor_bytes, memory, Target(*target), host, Path(folder))
            pusher.through_connector(WARM_UP_BYTES, LAZY_POLL_S)
            name = f"{LINK_MBIT_S} Mbit/s, {descriptor_bytes >> 10} KiB"
            yield _ours(
                name, [_usage(partial(pusher.through_connector, PUSH_BYTES, LAZY_POLL_S)) for _ in range(ROUNDS)]
            )
            yield _batch_call(name, _usage(partial(pusher.through_batch_call, pusher.plan(PUSH_BYTES))))
            pusher.close()


def _ours(name: str, usages: Sequence[Usage]) -> Figure:
    def middle(value: Callable[[Usage], float]) -> float:
        return spread([value(usage) for usage in usages]).median

    bench = threading.current_thread().name  # hands over, then waits
    return Figure(
        name=f"{name}: sender thread",
        value=middle(lambda usage: usage.threads[_SENDER]),
        unit="% core",
        target=Goal("at most", AT_MOST_PERCENT),
        details={
            "whole process": middle(lambda usage: usage.process - usage.threads[bench]),
            "MB/s": middle(lambda usage: PUSH_BYTES / usage.transfer_s / 1e6),
        },
    )


def _batch_call(name: str, usage: Usage) -> Figure:
    return Figure(
        name=f"{name}: Mooncake's batch call, process",
        value=usage.process,
        unit="% core",
        details={"MB/s": PUSH_BYTES / usage.transfer_s / 1e6},
    )


def _usage(transfer: Callable[[], float]) -> Usage:
    before = _clocks()
    process_before = time.process_time()
    seconds = transfer()
    process = time.process_time() - process_before
    return Usage(
        seconds,
        {name: 100 * (after - before[name]) / seconds for name, after in _clocks().items()},
        100 * process / seconds,
    )


def _clocks() -> dict[str, float]:
    return {
        thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.ident is not None
    }
