"""The report: a table for people, JSON for scripts. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from benchmarks.overlap.figures import Figures, Line

HEADINGS: Final = (
    *("link", "tokens", "chunk", "n", "C", "X", "ideal", "subject", "TTFT", "min–max"),
    *("÷ideal+10", "÷mooncake", "hidden", "bytes", "prefill", "commit→1st", "other CPU"),
)


def table(cells: Sequence[Figures]) -> str:
    """Return all figures as an aligned table; times in ms."""
    rows = [HEADINGS, *(_row(cell, line) for cell in cells for line in cell.lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines + [f"dropped: {reason}" for cell in cells for reason in cell.measured.failures])


def link_name(mbit_s: int) -> str:
    """Return a link as people write it."""
    if not mbit_s:
        return "none"
    return f"{mbit_s // 1000}G" if mbit_s % 1000 == 0 else f"{mbit_s}M"


def to_plain(cells: Sequence[Figures]) -> list[dict[str, Any]]:
    """Return figures and samples as JSON-ready containers."""
    return [asdict(cell) | {"cell": cell.measured.cell._asdict()} for cell in cells]


def _row(figures: Figures, line: Line) -> tuple[str, ...]:
    measured = figures.measured
    cell = measured.cell
    return (
        link_name(cell.link_mbit_s),
        str(cell.tokens),
        str(cell.chunk_tokens),
        str(len(measured.samples[line.subject])),
        _ms(figures.plain_s),
        _ms(figures.raw_s),
        _ms(figures.ideal_s),
        line.subject,
        _ms(line.ttft_s),
        f"{_ms(line.fastest_s)}–{_ms(line.slowest_s)}",
        _ratio(line.to_ideal),
        _ratio(line.to_upstream),
        "–" if line.hidden_share is None else f"{line.hidden_share:.0%}",
        "all" if line.bytes_right else "MISSING",
        _ratio(line.prefill_ratio),
        _commit(line),
        f"{measured.other_cores:.2f}" + (f" ({measured.noisy_rounds} noisy)" if measured.noisy_rounds else ""),
    )


def _commit(line: Line) -> str:
    if line.after_commit_s is None:
        return "–" if line.commit_bound_s is None else f"≤{_ms(line.commit_bound_s)}"
    return _ms(line.after_commit_s)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
