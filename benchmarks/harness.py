"""What the benchmarks share: a place to work, the bench model, ratios round by round, and tables in Markdown."""

import argparse
import ctypes
import mmap
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from baton.deploy.environment import zygote_environment
from baton.deploy.forkserver import VLLM_PRELOAD, ForkServer, ForkServerError
from baton.loadtest.client.http import WireError
from baton.loadtest.errors import LoadtestError, UsageError

MODEL: Final = Path(tempfile.gettempdir()) / "baton-bench-model"
QUIET: Final = ("--uvicorn-log-level", "error", "--disable-uvicorn-access-log")  # of vLLM's servers
RARE_PROBES: Final = {"BATON_PROXY_PROBE_INTERVAL_S": "10"}  # a proxy's health checks cost the nodes a millisecond each


class BenchError(Exception):
    """A benchmark cannot go on; the message is for the person who asked."""


FAILURES: Final = (BenchError, ForkServerError, LoadtestError, WireError)  # told in a sentence


class Spread(NamedTuple):
    """A figure over the rounds: the middle says how much, the ends say how sure."""

    median: float
    least: float
    most: float

    def text(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.least:.{digits}f}–{self.most:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Divide round by round, since what slows the machine down slows both."""
    return spread([one / other for one, other in zip(above, below, strict=True)])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def add_common(add: Callable[..., argparse.Action]) -> None:
    add("--seed", type=int, default=None, help="of the prompts; a new one is drawn unless given")
    add("--mlp", type=int, default=1024, help="width of the bench model's MLP: how much a token has to compute")
    add("--logs", type=Path, metavar="FOLDER", help="keep the processes' logs")


@contextmanager
def workplace(name: str, *, logs: Path | None = None, prepare: str = VLLM_PRELOAD) -> Iterator[tuple[ForkServer, Path]]:
    with ExitStack() as stack:
        folder = logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"baton-{name}-")))
        folder.mkdir(parents=True, exist_ok=True)
        zygote = zygote_environment(os.environ, offline=True)
        yield stack.enter_context(ForkServer(prepare=prepare, log=folder / "zygote.log", environ=zygote)), folder


def run(name: str, measure: Callable[[], int | None], *also: type[Exception]) -> int:
    """Measure; return the benchmark's own status, 130 after Ctrl-C or SIGTERM, 2 (wrong arguments) or 1 after a known error.

    Known are the errors of `FAILURES` and `also`; the message is printed.
    """
    told: tuple[type[Exception], ...] = (*FAILURES, *also)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return measure() or 0
    except told as exc:
        print(f"{name}: {exc}", file=sys.stderr)
        return 2 if isinstance(exc, UsageError) else 1
    except KeyboardInterrupt:
        return 130


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class HostMemory:
    """Memory of this process, filled with random bytes, and its address."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size)
        self._memory[:] = os.urandom(1 << 16) * (size >> 16)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.size = size
