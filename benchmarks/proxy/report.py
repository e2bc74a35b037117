"""A session → JSON for scripts, Markdown for people. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from benchmarks.harness import markdown_table
from benchmarks.proxy import figures
from benchmarks.proxy.figures import ASGI, BATON, METRICS, Metric, Sample, Verdict
from benchmarks.proxy.load import SHORT
from benchmarks.proxy.session import Result
from benchmarks.proxy.subjects import Missing

_COMPARED: Final = (figures.REQUEST, figures.CHUNK, figures.ADDED, figures.STARTS)
_MIB: Final = 1 << 20


def to_plain(result: Result, missing: Sequence[Missing], about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **about,
        "plan": asdict(result.plan),
        "subjects": {subject.name: subject.what for subject in result.subjects},
        "missing": {one.name: one.reason for one in missing},
        "noise": asdict(result.noise),
        "figures": {name: _plain_figures(samples) for name, samples in result.samples.items()},
        "memory": {name: memory._asdict() for name, memory in result.memory.items()},
        "verdicts": [_plain_verdict(verdict) for verdict in _judged(result)],
        "samples": {name: [asdict(sample) for sample in samples] for name, samples in result.samples.items()},
    }


def markdown(result: Result, missing: Sequence[Missing], about: Mapping[str, Any]) -> str:
    parts = [_opening(result, missing, about), _figures(result)]
    parts += [_ratios(result, other) for other in (ASGI, figures.HTTPX) if other in result.samples]
    if verdicts := _judged(result):
        rows = [list(_verdict(verdict)) for verdict in verdicts]
        parts.append("Against the targets:\n\n" + markdown_table(["target", "seen", "met"], rows))
    return "\n\n".join(parts) + "\n"


def _judged(result: Result) -> list[Verdict]:
    return [figures.verdict_of(target, result.samples) for target in figures.TARGETS] if BATON in result.samples else []


def _opening(result: Result, missing: Sequence[Missing], about: Mapping[str, Any]) -> str:
    plan, noise = result.plan, result.noise
    most = max(noise.other_cores)
    lines = [
        (
            f"{about['when'][:10]}; {about['system']}, {about['cpus']} cores: the proxy has one, load and mocks the other. "
            f"{plan.rounds} rounds, each subject in turn; medians, (least–most) of the rounds."
        ),
        (
            f"Load average {noise.load_before:.2f} before and {noise.load_after:.2f} after; other processes used at most "
            f"{most:.3f} cores in a round."
        ),
        "",
        (
            f"A short request has a prompt of 40 bytes and {SHORT} tokens, streamed, {plan.at_once} at once, {plan.short_requests} a "
            f"round. Chunks: {plan.streams} streams of {plan.tokens} tokens, one each {plan.itl_ms:g} ms, of {plan.chunk_bytes} "
            "bytes, all at once as an engine's step sends them; what they cost more than as many short ones. Added latency: one request at a time, median, less the mock's "
            "own. Stretch: time of these streams ÷ the same without a proxy. CPU is user and system time of the proxy's whole "
            "process tree. Every request was handed over from a prefill to a decode mock, and every byte was counted."
        ),
        "",
        *(f"- **{subject.name}**: {subject.what}" for subject in result.subjects),
        *(f"- **{one.name}**: not measured, {one.reason}" for one in missing),
    ]
    return "\n".join(lines)


def _figures(result: Result) -> str:
    head = ["proxy", *(f"{metric.name}, {metric.unit}" for metric in METRICS), "RSS, MiB", "PSS, MiB"]
    rows = [
        [
            name,
            *(_spread(metric, samples) for metric in METRICS),
            *(f"{size / _MIB:.0f}" for size in result.memory[name]),
        ]
        for name, samples in result.samples.items()
    ]
    return markdown_table(head, rows)


def _ratios(result: Result, other: str) -> str:
    base = result.samples[other]
    rows = [
        [name, *(figures.ratio(metric, samples, base).text() for metric in _COMPARED)]
        for name, samples in result.samples.items()
        if name != other
    ]
    return f"÷ {other}, round by round:\n\n" + markdown_table(["proxy", *(metric.name for metric in _COMPARED)], rows)


def _verdict(verdict: Verdict) -> tuple[str, str, str]:
    target = verdict.target
    over = f"{target.other} ÷ {BATON} ≥" if target.by_factor else f"{BATON} ÷ {target.other} ≤"
    wanted = f"{target.metric.name}: {over} {target.bound:g}"
    if verdict.ratio is None:
        return wanted, "–", f"{target.other} was not there"
    return wanted, verdict.ratio.text(), "yes" if verdict.met else "**no**"


def _spread(metric: Metric, samples: Sequence[Sample]) -> str:
    found = figures.over_rounds(metric, samples)
    digits = 2 if metric.unit == "×" else 1 if found.median < 100 else 0
    return found.text(digits)


def _plain_figures(samples: Sequence[Sample]) -> dict[str, Any]:
    return {metric.name: {"unit": metric.unit, **figures.over_rounds(metric, samples)._asdict()} for metric in METRICS}


def _plain_verdict(verdict: Verdict) -> dict[str, Any]:
    wanted, _, _ = _verdict(verdict)
    return {"target": wanted, "ratio": verdict.ratio._asdict() if verdict.ratio else None, "met": verdict.met}
