"""Whole runs for tests."""

from collections.abc import Sequence
from typing import Any

from baton.loadtest.measures.record import Record
from baton.loadtest.result import SCHEMA_VERSION, ClientCost, HistogramMean, NodeFigures, Result, StageResult
from tests.unit.loadtest.records import record

COST = ClientCost(cpu_s=0.1, wall_s=2.0, lag_median_s=0.0001, lag_p99_s=0.001, lag_max_s=0.002)
NODE = NodeFigures(url="http://p:1", histograms={"ttft_s": HistogramMean(3, 0.25)}, transfers={"committed": 3})


def stage(records: Sequence[Record] | None = None, **more: Any) -> StageResult:
    """A closed loop of two users."""
    taken = [record(0.1 * at, index=at) for at in range(10)] if records is None else list(records)
    values = {"label": "2 users", "load": {"loop": "closed", "concurrency": 2}, "duration_s": 2.0, "unfinished": 0}
    return StageResult(**{**values, "records": taken, "client": COST, **more})


def result(*stages: StageResult, **more: Any) -> Result:
    values = {
        "schema_version": SCHEMA_VERSION,
        "began_at": "2026-01-02T03:04:05+00:00",
        "interrupted": False,
        "arguments": {"url": "http://a:1", "seed": 0, "model": "m"},
        "workload": {"dataset": "random", "model": "m"},
        "environment": {"cpus": 2},
        "slos_ms": {},
        "stages": list(stages or [stage()]),
    }
    return Result(**{**values, **more})
