"""Parts of a benchmark that measure nothing."""

import importlib
import os
import time
from collections.abc import Iterator

from benchmarks.microbench.figures import Figure

FIGURES = [Figure(name="n", value=1.0, unit="µs")]


def prepare() -> None:
    """Import what answers the parent, once for all children."""
    importlib.import_module("benchmarks.microbench.children")


def measure(values: list[float]) -> Iterator[Figure]:
    """Yield the values, and who yields them."""
    for value in values:
        yield Figure(name="n", value=value, unit="µs", details={"pid": os.getpid()})


def fail() -> Iterator[Figure]:
    """Break after a figure."""
    yield from FIGURES
    raise RuntimeError("broken on purpose")


def hang() -> Iterator[Figure]:
    """Never yield anything."""
    time.sleep(600)
    yield from FIGURES
