"""`loadtest compare A B`: a verdict per metric, from bootstrap intervals of the difference, if both did the same work."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from baton.loadtest import files, words
from baton.loadtest.compare.resample import METRICS, Difference, Interval, Metric, Requests, Slices, differences
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.report.html import figure, page, plots, table_html, when
from baton.loadtest.report.pictures import distributions, throughput_plots
from baton.loadtest.report.tables import Table
from baton.loadtest.report.text import about, table_text
from baton.loadtest.result import Result, StageResult, read_result

TOLERANCE: Final = 0.02  # by which mean lengths, and the shares that were never sent, may differ
SCHEMA_VERSION: Final = 1
BETTER: Final = "better"
WORSE: Final = "worse"
SAME: Final = "no difference"
TOO_FEW: Final = "too few"
_NOTE: Final = (
    "B against A. An interval holds the difference that chance alone would move so far, were the same server asked again "
    "in the same state; other runs of the same server may differ by more. {confidence:.0%} each, so about one verdict in "
    "{one_in:.0f} is wrong where nothing differs. Too few: fewer than 10 values, or 100 for a P99."
)


def obstacles(a: Result, b: Result) -> list[str]:
    """Return why two runs cannot be compared, a sentence each; none: they can."""
    found = [f"the work differs: {words}" for words in _unequal(a.workload, b.workload)]
    if len(a.stages) != len(b.stages):
        return [*found, f"A has {len(a.stages)} stages and B has {len(b.stages)}"]
    for one, other in zip(a.stages, b.stages, strict=True):
        found += [f"the load of {one.label} differs: {words}" for words in _unequal(one.load, other.load)]
        found += [*_lengths(one, other), *_unsent(one, other)]
    return found


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    names = [*one, *(name for name in other if name not in one)]
    return [
        f"{name} is {one.get(name)} in A and {other.get(name)} in B"
        for name in names
        if one.get(name) != other.get(name)
    ]


def _lengths(one: StageResult, other: StageResult) -> list[str]:
    completed = [[record for record in stage.records if record.ok] for stage in (one, other)]
    if not all(completed):
        return [f"no request of {one.label} was completed"]
    found = []
    for name, field in (("prompts", "input_tokens"), ("answers", "output_tokens")):
        first, second = (fmean(getattr(record, field) for record in records) for records in completed)
        if abs(first - second) > TOLERANCE * max(first, second):
            found.append(f"{name} of {one.label} were {first:.1f} tokens in A and {second:.1f} in B on average")
    return found


def _unsent(one: StageResult, other: StageResult) -> list[str]:
    """Refuse what was measured without many that had waited longest, beside what was measured with them."""
    first, second = (stage.unsent / max(len(stage.records) + stage.unsent, 1) for stage in (one, other))
    if abs(first - second) <= TOLERANCE:
        return []
    return [f"of {one.label} {first:.1%} of what was due was never sent in A and {second:.1%} in B"]


class Finding(NamedTuple):
    """One metric of one stage."""

    stage: str
    metric: Metric
    found: Difference
    verdict: str


def parser() -> words.Parser:
    made = words.parser("compare", "Say which metrics of two runs differ.")
    add = made.add_argument
    add("a", type=Path, metavar="A", help="folder or result.json of the first run")
    add("b", type=Path, metavar="B", help="folder or result.json of the second run, judged against A")
    add("--confidence", type=words.share, default=0.95, metavar="X", help="confidence of each interval (%(default)s)")
    add("--resamples", type=words.count, default=1000, metavar="N", help="samples of the bootstrap (%(default)s)")
    add("--seed", type=int, default=0, help="random seed of the bootstrap (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the findings there, too")
    add("--html", type=Path, metavar="FILE", help="write one page with tables and plots of both runs there, too")
    add("--force", action="store_true", help="compare runs of different work or load all the same")
    return made


def main(argv: Sequence[str]) -> int:
    given = parser().parse_args(argv)
    a, b = read_result(given.a), read_result(given.b)
    reasons = obstacles(a, b)
    if reasons and not given.force:
        raise RunError(f"these runs cannot be compared: {'; '.join(reasons)} (--force compares them all the same)")
    if len(a.stages) != len(b.stages):
        raise UsageError("runs with different numbers of stages have nothing to pair")
    findings = compare(a, b, resamples=given.resamples, seed=given.seed, confidence=given.confidence)
    shown, note = tables(findings), _note(given.confidence, reasons)
    print("\n\n".join([*map(table_text, shown), note]))
    if given.json:
        files.write(given.json, json.dumps(as_plain(findings, given.confidence, reasons), indent=1) + "\n")
    if given.html:
        files.write(given.html, comparison_page(a, b, shown, note))
    return 0


def compare(a: Result, b: Result, *, resamples: int, seed: int, confidence: float) -> list[Finding]:
    slos = a.slos_ms if a.slos_ms == b.slos_ms else {}
    findings = []
    for one, other in zip(a.stages, b.stages, strict=True):
        requests = Requests(one, slos), Requests(other, slos)
        found = differences(*requests, resamples=resamples, seed=seed, confidence=confidence)
        found |= differences(Slices(one), Slices(other), resamples=resamples, seed=seed, confidence=confidence)
        for metric in METRICS:
            if metric.name in found:
                few = min(each.values.get(metric.name.partition(" ")[2], each.sent) for each in requests)
                verdict = judge(found[metric.name].difference, metric) if few >= metric.least else TOO_FEW
                findings.append(Finding(one.label, metric, found[metric.name], verdict))
    return findings


def judge(difference: Interval, metric: Metric) -> str:
    if difference.low <= 0 <= difference.high:
        return SAME
    return BETTER if (difference.high < 0) == metric.lower_is_better else WORSE


def tables(findings: Sequence[Finding]) -> list[Table]:
    headings = ("", "A", "B", "B - A", "interval", "B ÷ A", "interval", "verdict")
    return [
        Table(label, headings, [_row(finding) for finding in findings if finding.stage == label])
        for label in dict.fromkeys(finding.stage for finding in findings)
    ]


def _row(finding: Finding) -> tuple[str, ...]:
    metric, found = finding.metric, finding.found
    ratio = ("–", "–")
    if found.ratio is not None:
        ratio = (f"{found.b / found.a:.3f}", f"{found.ratio.low:.3f} to {found.ratio.high:.3f}")
    digits = 4 if metric.unit == "share" else 2
    difference = found.difference
    return (
        f"{metric.name} ({metric.unit})",
        f"{found.a:.{digits}f}",
        f"{found.b:.{digits}f}",
        f"{found.b - found.a:+.{digits}f}",
        f"{difference.low:+.{digits}f} to {difference.high:+.{digits}f}",
        *ratio,
        finding.verdict,
    )


def _note(confidence: float, reasons: Sequence[str]) -> str:
    note = _NOTE.format(confidence=confidence, one_in=1 / (1 - confidence))
    return note if not reasons else f"Compared by force, although {'; '.join(reasons)}.\n{note}"


def comparison_page(a: Result, b: Result, verdicts: Sequence[Table], note: str) -> str:
    """Return one page: the verdicts, the distributions of each latency or, of sweeps, both Pareto fronts."""
    title = f"Load tests of {a.arguments.get('model')}: A, {when(a)}, and B, {when(b)}"
    parts = [f"<h1>{escape(title)}</h1>", *map(table_html, verdicts), f'<p class="note">{escape(note)}</p>']
    if len(a.stages) > 1:
        parts += ["<h2>Throughput and latency</h2>", plots(map(figure, throughput_plots([("A", a), ("B", b)])))]
    else:
        named = [(f"{name}, {run.stages[0].label}", run.stages[0]) for name, run in (("A", a), ("B", b)) if run.stages]
        parts += ["<h2>Latencies</h2>", plots(map(figure, distributions(named)))]
    parts.append("<h2>What was run</h2>")
    parts += [table_html(about(run)._replace(title=name)) for name, run in (("A", a), ("B", b))]
    return page(title, parts)


def as_plain(findings: Sequence[Finding], confidence: float, reasons: Sequence[str]) -> dict[str, Any]:
    rows = [
        {
            "stage": finding.stage,
            "metric": finding.metric.name,
            "unit": finding.metric.unit,
            "a": finding.found.a,
            "b": finding.found.b,
            "difference": list(finding.found.difference),
            "ratio": None if finding.found.ratio is None else list(finding.found.ratio),
            "verdict": finding.verdict,
        }
        for finding in findings
    ]
    return {"schema_version": SCHEMA_VERSION, "confidence": confidence, "forced": list(reasons), "metrics": rows}
