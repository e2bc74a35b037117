"""Which plots a run has: distributions of latencies, requests over time, throughput against latency, and legs.

Legs are where the time to the first token went, in three strips a request: the request as the client and the decode node
saw it, the prefill leg's computing, its pushes. `KEYS` and `_NOTE` say how to read them.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from baton.loadtest.measures.percentile import percentile
from baton.loadtest.measures.record import Record
from baton.loadtest.measures.serving import by_second
from baton.loadtest.report import plots
from baton.loadtest.report.plots import Axes, Labels, Picture, Scale, Series
from baton.loadtest.report.tables import TITLES, figures
from baton.loadtest.result import Result, StageResult

POINTS: Final = 200  # of a distribution
ROWS: Final = 300  # of a timeline
LEAST: Final = 60.0  # height of one
LEG_ROWS: Final = 20  # of a picture of legs
_ROW: Final = 26.0  # height of the legs of one request
_AFTER: Final = 1.1  # so much of the time to the slowest first token is shown
KEYS: Final = (
    ("way", "on the way to the decode node: network, proxy and its queue"),
    ("waits", "waiting for KV"),
    ("steps", "from COMMIT to the first token"),
    ("tokens", "tokens"),
    ("prefill", "prefill leg"),
    ("pushes", "pushes"),
)
_NOTE: Final = (
    "A gap before the prefill leg is the prompt's way to that node and its queue. Nodes and client are put on one axis by "
    "wall clock: between machines this is as right as their clocks agree."
)


def distributions(stages: Sequence[tuple[str, StageResult]]) -> list[Picture]:
    found = []
    for name, (short, title) in TITLES.items():
        series = [
            Series(label, cdf([each for record in stage.records if record.ok for each in record.latencies_s(name)]))
            for label, stage in stages
        ]
        labels = Labels(
            name=f"cdf-{name}",
            title=f"{title}: distribution",
            description=f"Share of values that are at most so long, for each load. The table of {short} has the figures.",
            x=f"{short} (ms)",
            y="share of values",
        )
        found.append(plots.line_plot(labels, [line for line in series if line.points]))
    return found


def cdf(values: Sequence[float]) -> list[tuple[float, float]]:
    ordered = sorted(values)
    if not ordered:
        return []
    steps = min(POINTS, len(ordered))
    return [(ordered[0] * 1000, 0.0)] + [
        (percentile(ordered, 100 * at / steps) * 1000, at / steps) for at in range(1, steps + 1)
    ]


def over_time(stage: StageResult, name: str) -> Picture:
    tokens, _ = by_second([record for record in stage.records if record.ok])
    labels = Labels(
        name=name,
        title="Output tokens over time",
        description="Tokens that came in each second, of completed requests; the table has the mean and the highest.",
        x="seconds",
        y="tokens per second",
    )
    return plots.line_plot(labels, [Series("tokens", list(enumerate(map(float, tokens))))] if tokens else [])


def timeline(stage: StageResult, name: str) -> Picture:
    shown = sorted(stage.records, key=lambda record: record.started_s)[:ROWS]
    tall = max(2.0, min(14.0, 420 / max(len(shown), 1)))
    height = plots.TOP + plots.BOTTOM + max(tall * len(shown), LEAST)
    axes = Axes(Scale(plots.nice(max((record.ended_s for record in shown), default=1.0))), Scale(1.0))
    labels = Labels(
        name=name,
        title=f"Requests over time, {stage.label}",
        description=f"The first {len(shown)} of {len(stage.records)} requests, a bar each, from its start to its end; "
        "requests.csv has the same figures.",
        x="seconds since the stage began",
        y=f"{len(shown)} requests, a line each" + f", of {len(stage.records)}" * (len(stage.records) > len(shown)),
    )
    bars = [_bar(axes, record, plots.TOP + at * tall, tall) for at, record in enumerate(shown)]
    kinds = (
        ("queue", "waiting in line"),
        ("first", "until the first token"),
        ("tokens", "tokens"),
        ("failed", "failed"),
    )
    drawn = "".join(bars)
    keys = [plots.box_key(css, text) for css, text in kinds if f'class="{css}"' in drawn]
    drawing = plots.svg(labels, [plots.frame(axes, labels, height, y_ticks=False), drawn], height)
    return Picture(labels.title, keys, drawing)


def bar(axes: Axes, css: str, between_s: tuple[float, float], y: float, tall: float) -> str:
    """Return a stretch of time; the shortest can still be seen."""
    began, ended = (axes.x(min(max(at, 0.0), axes.across.most)) for at in between_s)
    return (
        f'<rect class="{css}" x="{began:.1f}" y="{y:.1f}" width="{max(ended - began, 0.3):.1f}" height="{tall:.1f}"/>'
    )


def _bar(axes: Axes, record: Record, y: float, row: float) -> str:
    def rect(css: str, began_s: float, ended_s: float) -> str:
        return bar(axes, css, (began_s, ended_s), y, max(row * 0.8, 1.5))

    parts = [rect("queue", record.started_s - record.queued_s, record.started_s)] if record.queued_s else []
    if record.ok and record.ttft_s is not None:
        parts.append(rect("first", record.started_s, record.first_token_s))
        parts.append(rect("tokens", record.first_token_s, record.last_token_s))
        said = f"request {record.index}: TTFT {record.ttft_s * 1000:.1f} ms, {record.output_tokens} tokens"
    else:
        parts.append(rect("failed", record.started_s, record.ended_s))
        said = f"request {record.index}: {record.error}"
    return f"<g><title>{escape(said)}</title>{''.join(parts)}</g>"


def throughput_plots(runs: Sequence[tuple[str, Result]]) -> list[Picture]:
    """Return throughput against latency, a point for each stage of each named run; of two runs, both Pareto fronts."""
    found = []
    for name in ("ttft", "tpot"):
        short, title = TITLES[name]
        series = []
        for run, result in runs:
            served = [figures(stage, result.slos_ms).serving for stage in result.stages]
            served = [each for each in served if each.completed]  # nothing has a latency where nothing was answered
            rates, values = [each.output_tokens_per_s for each in served], [getattr(each, name) for each in served]
            for which, chosen in (("median", [each.median for each in values]), ("P99", [each.p99 for each in values])):
                points = [(rate, value * 1000) for rate, value in zip(rates, chosen, strict=True)]
                series.append(Series(f"{run} {which} {short}".lstrip(), points))
        labels = Labels(
            name=f"throughput-{name}",
            title=f"Throughput and {title}",
            description="A point for each load, in the order of the stages; the tables have the figures.",
            x="output tokens per second",
            y=f"{short} (ms)",
        )
        found.append(plots.line_plot(labels, [line for line in series if line.points], marks=True, kin=2))
    return found


class Stretch(NamedTuple):
    """A part of one request, in s since it was sent."""

    kind: str  # one of `KEYS`
    began_s: float
    ended_s: float


def legs_picture(stage: StageResult, name: str) -> Picture:
    told = {each.transfer_id: each.spans for each in stage.legs}
    known = [record for record in stage.records if record.ttft_s is not None and record.transfer_id in told]
    shown = chosen(sorted(known, key=_ttft_s), LEG_ROWS)
    height = plots.TOP + plots.BOTTOM + max(_ROW * len(shown), LEAST)
    axes = Axes(Scale(plots.nice(1000 * _AFTER * max(map(_ttft_s, shown), default=1.0))), Scale(1.0))
    title = f"Legs and pushes, {stage.label}"
    labels = Labels(
        name=name,
        title=title,
        description=f"{len(shown)} of {len(known)} requests whose nodes told of them, from the fastest first token to "
        "the slowest: both legs and the pushes, from the moment the request was sent.",
        x="ms since the request was sent",
        y=f"{len(shown)} of {len(known)} requests, from the fastest first token to the slowest",
    )
    rows = [_row(axes, record, told[record.transfer_id], plots.TOP + at * _ROW) for at, record in enumerate(shown)]
    keys = [plots.box_key(css, text) for css, text in KEYS]
    drawing = plots.svg(labels, [plots.frame(axes, labels, height, y_ticks=False), *rows], height)
    return Picture(title, keys, drawing, f"{_NOTE} {stage.legs_note}".strip())


def chosen(ordered: list[Record], most: int) -> list[Record]:
    if len(ordered) <= most:
        return ordered
    return [ordered[round(at * (len(ordered) - 1) / (most - 1))] for at in range(most)]


def stretches(record: Record, spans: Mapping[str, tuple[float, float]]) -> list[Stretch]:
    sent_s, first_s, last_s = record.started_s, _ttft_s(record), record.latency_s or 0.0

    def since(name: str) -> tuple[float, float] | None:
        return (spans[name][0] - sent_s, spans[name][1] - sent_s) if name in spans else None

    found = []
    allocating, waiting, stepping = since("allocation"), since("waiting for KV"), since("commit to first step")
    if allocating:
        found.append(Stretch("way", 0.0, allocating[0]))
        found.append(Stretch("waits", allocating[0], waiting[1] if waiting else allocating[1]))
    if stepping:
        found.append(Stretch("steps", stepping[0], first_s))
    found.append(Stretch("tokens", first_s, last_s))
    found += [Stretch(name, *times) for name in ("prefill", "pushes") if (times := since(name))]
    return found


def _row(axes: Axes, record: Record, spans: Mapping[str, tuple[float, float]], y: float) -> str:
    parts = []
    for kind, began_s, ended_s in stretches(record, spans):
        down, tall = {"prefill": (12.0, 5.0), "pushes": (18.0, 4.0)}.get(kind, (0.0, 10.0))
        if began_s * 1000 < axes.across.most:
            parts.append(bar(axes, kind, (began_s * 1000, ended_s * 1000), y + down, tall))
    said = f"request {record.index}: TTFT {_ttft_s(record) * 1000:.1f} ms, {record.input_tokens} prompt tokens"
    label = f'<text class="row" x="{plots.LEFT - 6}" y="{y + 13:.0f}" text-anchor="end">{record.index}</text>'
    return f"<g><title>{escape(said)}</title>{label}{''.join(parts)}</g>"


def _ttft_s(record: Record) -> float:
    return record.ttft_s or 0.0
