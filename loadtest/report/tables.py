"""All figures of one stage, computed from its records, and its tables for every form of the report. Rows of the first one are vLLM's."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from baton.loadtest.measures.percentile import Spread, spread
from baton.loadtest.measures.record import LATENCIES
from baton.loadtest.measures.serving import REFILL_S, Serving, Stable, errors_by_kind, paths, serving, stable
from baton.loadtest.result import HISTOGRAMS, NodeFigures, Result, StageResult

TITLES: Final = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


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


class Table(NamedTuple):
    """A table; the first column names the row."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def serving_tables(stage: StageResult, served: Serving) -> list[Table]:
    """Return vLLM's table in its parts, with the rows that concern this stage."""
    load = stage.load
    rows = [("Successful requests", str(served.completed)), ("Failed requests", str(served.failed))]
    if load.get("concurrency"):
        rows.append(("Maximum request concurrency", str(load["concurrency"])))
    if "rate_per_s" in load:
        rows.append(("Request rate configured (RPS)", f"{load['rate_per_s']:.2f}"))
    rows += [
        ("Benchmark duration (s)", f"{served.duration_s:.2f}"),
        ("Total input tokens", str(served.input_tokens)),
        ("Total generated tokens", str(served.output_tokens)),
        ("Request throughput (req/s)", f"{served.requests_per_s:.2f}"),
    ]
    if served.goodput_per_s is not None:
        rows.append(("Request goodput (req/s)", f"{served.goodput_per_s:.2f}"))
    rows += [
        ("Output token throughput (tok/s)", f"{served.output_tokens_per_s:.2f}"),
        ("Peak output token throughput (tok/s)", f"{served.peak_output_tokens_per_s:.2f}"),
        ("Peak concurrent requests", f"{served.peak_concurrent_requests:.2f}"),
        ("Total token throughput (tok/s)", f"{served.tokens_per_s:.2f}"),
    ]
    parts = [Table("Serving benchmark result", ("", ""), rows)]
    parts += [_latency(*TITLES[name], values) for name, values in spreads(served).items()]
    if load["loop"] != "closed" and load.get("concurrency"):
        parts.append(_latency("Client Queue Time", "Client-side Queueing", served.queue))
    return parts


def _latency(name: str, title: str, values: Spread) -> Table:
    shown = (("Mean", values.mean), ("Median", values.median), ("P99", values.p99))
    return Table(title, ("", ""), [(f"{which} {name} (ms)", milliseconds(value, values)) for which, value in shown])


def milliseconds(seconds: float, of: Spread) -> str:
    """Return one figure of a sample in milliseconds; a dash if nothing was sampled."""
    return f"{seconds * 1000:.2f}" if of.n else "–"


def stable_table(found: Stable) -> Table:
    began, ended, most = found.stage
    return Table(
        "Stable stage",
        ("", "Average", "Min", "Max", "Median", "P75", "P90", "P99", "N"),
        [(f"{row.name} ({row.unit})", *_figures(row.spread)) for row in found.rows],
        f"From {began:.2f} to {ended:.2f} s: from when concurrency first reached its maximum ({most}) until it first left it "
        f"for longer than {REFILL_S * 1000:.0f} ms. {found.requests} completed requests that began in it.",
    )


def _figures(values: Spread) -> tuple[str, ...]:
    order = (values.mean, values.least, values.most, values.median, values.p75, values.p90, values.p99)
    return (*(f"{value:.2f}" if values.n else "–" for value in order), str(values.n))


def other_tables(stage: StageResult, found: Figures) -> list[Table]:
    """Return what vLLM's table has not; those that there is something for."""
    total = found.serving.completed + found.serving.failed
    tables = [stable_table(found.stable)] if found.stable else []
    if found.serving.second.n:
        tables.append(_latency("gap", "First Token to Second", found.serving.second))
    if found.errors:
        rows = [
            (kind, str(n), f"{n / total:.1%}", found.example[kind.partition(" ")[0]])
            for kind, n in found.errors.items()
        ]
        tables.append(Table("Errors", ("kind", "requests", "share", "one of them said"), rows))
    if found.paths:
        done = sum(found.paths.values())
        ways = [(path, str(n), f"{n / done:.1%}") for path, n in found.paths.items()]
        tables.append(Table("How Baton answered", ("x-baton-path", "requests", "share"), ways))
    if stage.nodes:
        tables.append(_nodes(stage.nodes))
    tables.append(_client(stage, found))
    return tables


def _nodes(nodes: Sequence[NodeFigures]) -> Table:
    rows = []
    for node in nodes:
        if node.note:
            rows.append((node.url, *["–"] * len(HISTOGRAMS), node.note))
            continue
        means = [_mean(node, name) for name in HISTOGRAMS]
        rows.append((node.url, *means, ", ".join(f"{name} {n}" for name, n in node.transfers.items())))
    exposed = ("exposed push (ms)", "exposed transfer (ms)")
    return Table(
        "Nodes",
        ("node", "TTFT (ms)", "TTIT (ms)", *exposed, "hidden share", "transfers ended"),
        rows,
        "Means of what each node measured itself during the stage, and of how many; from its /metrics, after minus before.",
    )


def _mean(node: NodeFigures, name: str) -> str:
    found = node.histograms.get(name)
    if found is None:
        return "–"
    value = f"{found.mean * 1000:.2f}" if name.endswith("_s") else f"{found.mean:.1%}"
    return f"{value} (N {found.n})"


def _client(stage: StageResult, found: Figures) -> Table:
    cost = stage.client
    rows = [
        ("CPU (s)", f"{cost.cpu_s:.2f}"),
        ("CPU (share of one core)", f"{cost.cpu_s / cost.wall_s if cost.wall_s else 0:.1%}"),
        ("event loop late, median (ms)", f"{cost.lag_median_s * 1000:.2f}"),
        ("event loop late, P99 (ms)", f"{cost.lag_p99_s * 1000:.2f}"),
        ("event loop late, max (ms)", f"{cost.lag_max_s * 1000:.2f}"),
    ]
    if found.late.n:
        rows += [("sent after due, P99 (ms)", f"{found.late.p99 * 1000:.2f}")]
        rows += [("sent after due, max (ms)", f"{found.late.most * 1000:.2f}")]
    if stage.unfinished:
        rows.append(("requests given up when stopped", str(stage.unfinished)))
    if stage.unsent:
        rows.append(("requests due and never sent", str(stage.unsent)))
    return Table("This client", ("", ""), rows, cost.warning())


def sweep_table(result: Result) -> Table:
    rows = []
    for stage in result.stages:
        served = figures(stage, result.slos_ms).serving
        rows.append(
            (
                stage.label,
                str(served.completed),
                str(served.failed),
                str(stage.unsent),
                f"{served.requests_per_s:.2f}",
                f"{served.output_tokens_per_s:.2f}",
                *(f"{value * 1000:.2f}" for value in (served.ttft.median, served.ttft.p99)),
                *(f"{value * 1000:.2f}" for value in (served.tpot.median, served.tpot.p99)),
                *(() if served.goodput_per_s is None else (f"{served.goodput_per_s:.2f}",)),
            )
        )
    latencies = ("median TTFT (ms)", "P99 TTFT (ms)", "median TPOT (ms)", "P99 TPOT (ms)")
    good = ("goodput (req/s)",) if result.slos_ms else ()
    return Table("Sweep", ("load", "completed", "failed", "unsent", "req/s", "output tok/s", *latencies, *good), rows)
