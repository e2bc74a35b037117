"""What `kv_verify` costs: digests of a long prompt's blocks, on this machine's CPU, by one thread."""

import random
from collections.abc import Iterator
from functools import partial
from typing import Final

import torch

from baton.kv_connector.worker_side.digest import RegionDigests
from benchmarks.microbench.figures import Figure, spread
from benchmarks.microbench.planner import contiguous, in_runs, timed
from benchmarks.microbench.rank import KvShape

BLOCKS: Final = 256
REPETITIONS: Final = 9
_SHAPE: Final = KvShape(layers=8, blocks=2 * BLOCKS, block_bytes=32_768)


def measure() -> Iterator[Figure]:
    memory = torch.randint(-(2**31), 2**31 - 1, (_SHAPE.total_bytes // 4,), dtype=torch.int32)
    digests = RegionDigests([memory], _SHAPE.regions(memory.data_ptr()))
    size = _SHAPE.layers * BLOCKS * _SHAPE.block_bytes
    rng = random.Random(1)  # the same tables in each run
    for kind, tables in {"contiguous": contiguous(BLOCKS), "scattered": in_runs(BLOCKS, 1, rng)}.items():
        took = spread(timed(partial(digests, tables.source, range(_SHAPE.layers)), REPETITIONS), 1e3)
        yield Figure(
            name=f"{size / 2**20:.0f} MiB in blocks of {_SHAPE.block_bytes // 1024} KiB, {kind}",
            value=took.median,
            unit="ms",
            details={"GB/s": size / 1e6 / took.median, "max ms": took.most},
        )
