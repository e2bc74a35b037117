"""What planning costs: long block tables of three kinds, and the small one that is usual."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from baton.kv_connector.layout.copy_plan import plan_layers
from baton.kv_connector.layout.regions import Region
from benchmarks.microbench.figures import Figure, Target, spread
from benchmarks.microbench.rank import KvShape

PAIRS: Final = 100_000
RUN: Final = 8
REPETITIONS: Final = 15
SMALL_BLOCKS: Final = 5
SMALL_LAYERS: Final = 8
SMALL_REPETITIONS: Final = 2_000
AT_MOST_MS: Final = 20.0
_BLOCK_BYTES: Final = 65_536


class BlockTables(NamedTuple):
    """Ids of source and destination blocks; block i goes to block i."""

    source: Sequence[int]
    destination: Sequence[int]


def contiguous(pairs: int) -> BlockTables:
    ids = list(range(pairs))
    return BlockTables(ids, ids)


def in_runs(pairs: int, run: int, rng: random.Random) -> BlockTables:
    """Blocks that follow each other `run` at a time, and never across runs."""
    starts = range(0, pairs * 2, run * 2)  # every second run: two neighbours never join
    tables = []
    for _ in range(2):
        order = rng.sample(starts, len(starts))
        tables.append([start + i for start in order for i in range(run)][:pairs])
    return BlockTables(*tables)


def region_pairs(layers: int, blocks: int) -> list[tuple[Region, Region]]:
    """Source and destination of each layer."""
    shape = KvShape(layers=layers, blocks=blocks, block_bytes=_BLOCK_BYTES)
    return list(zip(shape.regions(1 << 32), shape.regions(1 << 42), strict=True))


def measure() -> Iterator[Figure]:
    rng = random.Random(1)  # the same tables in each run
    regions = region_pairs(1, 2 * PAIRS)
    kinds = {
        "contiguous": contiguous(PAIRS),
        f"in runs of {RUN}": in_runs(PAIRS, RUN, rng),
        "scattered": in_runs(PAIRS, 1, rng),
    }
    for kind, tables in kinds.items():
        ms = spread(timed(partial(plan_layers, regions, *tables), REPETITIONS), 1e3)
        yield Figure(
            name=f"{PAIRS:,} pairs, {kind}",
            value=ms.median,
            unit="ms",
            target=Target("at most", AT_MOST_MS),
            details={"copies": len(plan_layers(regions, *tables)), "mean ms": ms.mean, "max ms": ms.most},
        )
    regions = region_pairs(SMALL_LAYERS, 1_000)
    for kind, tables in {"contiguous": contiguous(SMALL_BLOCKS), "scattered": in_runs(SMALL_BLOCKS, 1, rng)}.items():
        us = spread(timed(partial(plan_layers, regions, *tables), SMALL_REPETITIONS), 1e6)
        yield Figure(name=f"{SMALL_BLOCKS} blocks × {SMALL_LAYERS} layers, {kind}", value=us.median, unit="µs")


def timed(function: Callable[[], object], repetitions: int) -> list[float]:
    samples = []
    for _ in range(repetitions):
        began = time.perf_counter()
        function()
        samples.append(time.perf_counter() - began)
    return samples
