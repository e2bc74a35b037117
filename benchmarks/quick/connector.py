"""Hooks and planner beside a loop that never changes, so that a slower machine does not look like a slower connector.

They are measured in a process of their own, opposite one that offers the memory which the hooks' prompts are pushed to.
"""

import gc
import json
import random
import tempfile
import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Client
from pathlib import Path
from statistics import median
from typing import Final

from baton.deploy.forkserver import ForkServer
from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.layout.copy_plan import plan_layers
from baton.kv_connector.worker_side import sender
from benchmarks.harness import HostMemory
from benchmarks.overlap.processes import Place, processes
from benchmarks.quick import hooks
from benchmarks.quick.hooks import KvShape, PrefillRank, Target
from benchmarks.quick.ratios import Sample

ROUNDS: Final = 7
REPETITIONS: Final = 5  # of what is short, in each round
REQUESTS: Final = (1, 16)  # in a step
LAYERS: Final = 100  # whose hooks are set beside one run of the loop
PAIRS: Final = 100_000  # of blocks
_BLOCK_BYTES: Final = 65_536
_LOOPS: Final = 40_000
PREPARE: Final = f"{__name__}:prepare"
_PLACE: Final = Place(core=0, pinned=False, data_host="127.0.0.1")


def prepare() -> None:
    """Import nothing more: a heap of all of vLLM would make the planner's garbage collections longer."""


async def measure(forkserver: ForkServer, folder: Path) -> list[Sample]:
    socket, out = folder / "receiver", folder / "samples.json"
    async with processes(forkserver, folder, timeout_s=1.0) as started:
        receiver = {"path": str(socket), "host": _PLACE.data_host, "size": hooks.SHAPE.total_bytes}
        started.start("receiver", "benchmarks.overlap.targets:raw_receiver", receiver, _PLACE)
        await started.wait_for_file("receiver", socket)
        with Client(str(socket)) as connection:
            kwargs = {"target": connection.recv(), "out": str(out)}
        started.start("hooks", f"{__name__}:in_child", kwargs, _PLACE)
        await started.wait_for_file("hooks", out)
    return [Sample(*each) for each in json.loads(out.read_text())]


def calibration() -> int:
    """Do some of everything that the connector's Python does: integers, lists, dictionaries, a sort. About 10 ms."""
    table: dict[int, int] = {}
    total = 0
    for i in range(_LOOPS):
        table[i & 1023] = total
        total += i ^ (total & 7)
    return sum(sorted(table.values(), reverse=True)) + len([*range(_LOOPS)])


# --- in the child ---


def in_child(target: Sequence[str | int], out: str) -> None:
    """Measure hooks and planner `ROUNDS` times, and write the samples to `out`, which appears when complete."""
    sender.WORTH_BYTES = 0  # no layer is too small to be handed over alone
    memory = HostMemory(hooks.SHAPE.total_bytes)
    plans, samples = _plans(), []
    with tempfile.TemporaryDirectory() as folder:
        rank = PrefillRank(
            shape=hooks.SHAPE,
            address=memory.address,
            engines=MooncakeFactory(host=_PLACE.data_host),
            target=Target(str(target[0]), int(target[1])),
            folder=Path(folder),
        )
        cases = [hooks.Case(requests, rank) for requests in REQUESTS]
        for number in range(ROUNDS + 1):
            found = list(_round(plans, cases))
            if number:  # the first one warms up
                samples += found
        rank.worker.stop()
    unfinished = Path(f"{out}.part")
    unfinished.write_text(json.dumps(samples))
    unfinished.rename(out)


def _round(plans: dict[str, Callable[[], object]], cases: Sequence[hooks.Case]) -> Iterator[Sample]:
    unit_s = _least_s(calibration)
    for name, plan in plans.items():
        yield Sample(f"planner, {PAIRS:,} pairs {name} ÷ loop", _least_s(plan) / unit_s)
    for case in cases:
        case.hooks_s.clear()
        case.compute_prompts()
        taken_s = median(case.hooks_s) * LAYERS
        yield Sample(f"hooks of {LAYERS} layers, {case.requests} in a step ÷ loop", taken_s / unit_s)


def _plans() -> dict[str, Callable[[], object]]:
    shape = KvShape(layers=1, blocks=2 * PAIRS, block_bytes=_BLOCK_BYTES)
    regions = list(zip(shape.regions(1 << 32), shape.regions(1 << 42), strict=True))
    ids, rng = list(range(PAIRS)), random.Random(1)  # the same in each run
    even = range(0, PAIRS * 2, 2)  # of these no two follow each other
    tables = {"contiguous": (ids, ids), "scattered": (rng.sample(even, PAIRS), rng.sample(even, PAIRS))}
    return {name: partial(plan_layers, regions, *table) for name, table in tables.items()}


def _least_s(function: Callable[[], object]) -> float:
    """Return the time of the least disturbed of several calls."""
    return min(timeit.repeat(function, gc.enable, number=1, repeat=REPETITIONS))  # timeit disables collections
