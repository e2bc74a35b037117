"""All figures of one stage, computed from its records."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from baton.loadtest.measures.percentile import Spread, spread
from baton.loadtest.measures.record import LATENCIES
from baton.loadtest.measures.serving import Serving, errors_by_kind, paths, serving
from baton.loadtest.measures.stable import Stable, stable
from baton.loadtest.result import StageResult


class Figures(NamedTuple):
    """What the reports show of a stage."""

    serving: Serving
    stable: Stable | None
    errors: dict[str, int]  # by kind
    example: dict[str, str]  # by kind, what one of them said
    paths: dict[str, int]
    late: Spread  # s, by how much requests were sent after they were due; open loop


def figures(stage: StageResult, slos_ms: Mapping[str, float]) -> Figures:
    failed = [record for record in stage.records if not record.ok]
    return Figures(
        serving=serving(stage.records, stage.duration_s, slos_ms),
        stable=stable(stage.records),
        errors=errors_by_kind(stage.records),
        example={record.error: record.detail for record in reversed(failed)},
        paths=paths(stage.records),
        late=spread(r.started_s - r.due_s - r.queued_s for r in stage.records if r.due_s is not None),
    )


def as_plain(found: Figures) -> dict[str, Any]:
    """Return the figures for `result.json`; those that vLLM's benchmark has too are named as there."""
    served = found.serving
    plain: dict[str, Any] = {
        "duration": served.duration_s,
        "completed": served.completed,
        "failed": served.failed,
        "total_input_tokens": served.input_tokens,
        "total_output_tokens": served.output_tokens,
        "request_throughput": served.requests_per_s,
        "request_goodput": served.goodput_per_s,
        "output_throughput": served.output_tokens_per_s,
        "total_token_throughput": served.tokens_per_s,
        "max_output_tokens_per_s": served.peak_output_tokens_per_s,
        "max_concurrent_requests": served.peak_concurrent_requests,
    }
    for name, values in spreads(served).items():
        for which in ("mean", "median", "std", "p75", "p90", "p99"):
            plain[f"{which}_{name}_ms"] = getattr(values, which) * 1000
    plain["stable_stage"] = None
    if found.stable is not None:
        rows = {row.name: {"unit": row.unit, **row.spread._asdict()} for row in found.stable.rows}
        plain["stable_stage"] = {**found.stable.stage._asdict(), "requests": found.stable.requests, "rows": rows}
    return plain | {"errors": found.errors, "paths": found.paths, "late_s": found.late._asdict()}


def spreads(served: Serving) -> dict[str, Spread]:
    return {name: getattr(served, name) for name in LATENCIES}
