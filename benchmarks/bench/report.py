"""The report of a session: Markdown with its tables, a picture, and JSON with every sample. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from baton.loadtest.report.plots import Labels, Series, line_plot
from baton.loadtest.report.standalone import standalone
from baton.loadtest.result import rounded
from benchmarks.bench.figures import BATON, OTHERS, TITLES, Felts, FirstTokens, Streams
from benchmarks.harness import Spread, markdown_table
from benchmarks.overlap.figures import PLAIN, Measured
from benchmarks.overlap.report import link_name

_PICTURED: tuple[str, ...] = (*OTHERS, BATON)


def first_token_table(cells: Sequence[FirstTokens]) -> str:
    """Return TTFT by link and prompt length."""
    names = (PLAIN, *OTHERS, BATON)
    head = ["link, bit/s", "tokens", *(TITLES[name] for name in names), *(f"Baton ÷ {TITLES[name]}" for name in OTHERS)]
    rows = []
    for cell in cells:
        values = [_ms(cell.ttft_s.get(name)) + ("*" if name in cell.missing_bytes else "") for name in names]
        rows.append([_link(cell.link_mbit_s), str(cell.tokens), *values, *(_ratio(cell.ratios.get(o)) for o in OTHERS)])
    return markdown_table(head, rows)


def streams_table(lines: Sequence[Streams]) -> str:
    """Return what running streams felt."""
    head = ["link, bit/s", "", "P99 ITL, streams alone", "median ITL", "P99 ITL", "longest gap", "tokens/s ÷ alone"]
    head += ["TTFT of the long prompts", "Baton's P99 ITL ÷ this"]
    rows = [
        [
            *(_link(line.link_mbit_s), TITLES[line.subject], _ms(line.quiet_p99_s), _ms(line.busy_median_s)),
            *(_ms(line.busy_p99_s), _ms(line.busy_most_s), f"{line.tokens_share:.2f}", _ms(line.long_ttft_s)),
            _ratio(line.p99_ratio),
        ]
        for line in lines
    ]
    return markdown_table(head, rows)


def picture(cells: Sequence[FirstTokens], link_mbit_s: int) -> str:
    """Return TTFT against prompt length on one link, as an SVG file."""
    chosen = [cell for cell in cells if cell.link_mbit_s == link_mbit_s]
    series = [
        Series(TITLES[name], [(cell.tokens, cell.ttft_s[name] * 1000) for cell in chosen if name in cell.ttft_s])
        for name in _PICTURED
    ]
    labels = Labels(
        name="ttft",
        title=f"Time to first token at {_link(link_mbit_s)} bit/s",
        description="Median time to first token against the prompt's length; the report's table has the figures.",
        x="tokens in the prompt",
        y="TTFT (ms)",
    )
    drawn = [line for line in series if line.points]
    return standalone(line_plot(labels, drawn, marks=True), [line.name for line in drawn])


def to_plain(
    about: Mapping[str, Any],
    cells: Sequence[FirstTokens],
    measured: Sequence[Measured],
    lines: Sequence[Streams],
    felts: Sequence[Felts],
) -> dict[str, Any]:
    """Return everything as JSON-ready containers, every sample included."""
    plain = {
        "about": dict(about),
        "first_tokens": [asdict(cell) for cell in cells],
        "streams": [asdict(line) for line in lines],
        "first_token_samples": [asdict(each) | {"cell": each.cell._asdict()} for each in measured],
        "stream_samples": [asdict(each) for each in felts],
    }
    short: dict[str, Any] = rounded(plain, 5)  # below 10 µs is what the file would mostly consist of
    return short


def _link(mbit_s: int) -> str:
    return link_name(mbit_s) if mbit_s else "unthrottled"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f}" if seconds >= 0.1 else f"{seconds * 1000:.1f}"


def _ratio(value: Spread | None) -> str:
    return "" if value is None else f"{value.median:.2f} ({value.least:.2f}–{value.most:.2f})"
