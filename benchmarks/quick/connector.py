"""Hooks and planner beside a loop that never changes, so that a slower machine does not look like a slower connector."""

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from baton.kv_connector.layout.copy_plan import plan_layers
from baton.kv_connector.worker_side import sender
from benchmarks.harness import HostMemory
from benchmarks.microbench import hooks
from benchmarks.microbench.children import Children
from benchmarks.microbench.figures import Figure
from benchmarks.microbench.planner import PAIRS, contiguous, in_runs, region_pairs, timed
from benchmarks.microbench.pushes import CACHE_BYTES
from benchmarks.microbench.rank import Target
from benchmarks.quick.ratios import Sample

ROUNDS: Final = 7
REPETITIONS: Final = 5  # of what is short, in each round
REQUESTS: Final = (1, 16)  # in a step
LAYERS: Final = 100  # whose hooks are set beside one run of the loop
_LOOPS: Final = 40_000
_PART: Final = "benchmarks.quick.connector:in_child"


def measure(children: Children) -> Iterator[Sample]:
    with children.receiver(CACHE_BYTES) as target:
        for figure in children.figures(_PART, {"target": target}):
            yield Sample(figure.name, figure.value)


def calibration() -> int:
    """Do some of everything that the connector's Python does: integers, lists, dictionaries, a sort. About 10 ms."""
    table: dict[int, int] = {}
    total = 0
    for i in range(_LOOPS):
        table[i & 1023] = total
        total += i ^ (total & 7)
    return sum(sorted(table.values(), reverse=True)) + len([*range(_LOOPS)])


# --- in the child ---


def in_child(target: Sequence[Any]) -> Iterator[Figure]:
    """Time everything in turn, so often."""
    sender.WORTH_BYTES = 0  # no layer is too small to be handed over alone
    memory = HostMemory(hooks.SHAPE.total_bytes)
    planning = _planning()
    with tempfile.TemporaryDirectory() as folder:
        rank = hooks.start_rank("event", memory, Target(*target), Path(folder), "127.0.0.1")
        cases = [hooks.Case("event", requests, rank) for requests in REQUESTS]
        for number in range(ROUNDS + 1):
            found = list(_round(planning, cases))
            if number:  # the first one warms up
                yield from found
        rank.stop()


def _round(planning: dict[str, Callable[[], object]], cases: Sequence[hooks.Case]) -> Iterator[Figure]:
    unit_s = min(timed(calibration, REPETITIONS))  # the least disturbed one
    for name, plan in planning.items():
        yield Figure(name=f"planner, {PAIRS:,} pairs {name} ÷ loop", value=min(timed(plan, REPETITIONS)) / unit_s)
    for case in cases:
        case.hooks_s.clear()
        case.compute_prompts()
        taken_s = median(case.hooks_s) * LAYERS
        yield Figure(name=f"hooks of {LAYERS} layers, {case.requests} in a step ÷ loop", value=taken_s / unit_s)


def _planning() -> dict[str, Callable[[], object]]:
    rng = random.Random(1)  # the same tables in each run
    regions = region_pairs(1, 2 * PAIRS)
    tables = {"contiguous": contiguous(PAIRS), "scattered": in_runs(PAIRS, 1, rng)}
    return {name: partial(plan_layers, regions, *table) for name, table in tables.items()}
