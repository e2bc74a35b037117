"""The report as text: on a terminal, and in Markdown."""

from collections.abc import Sequence
from typing import Final

from baton.loadtest.report.tables import Table, figures, other_tables, serving_tables, sweep_table
from baton.loadtest.result import Result

_WIDTH: Final = 50  # as are vLLM's tables
_SENTENCE: Final = 40  # a wider column has words in it, and begins at the left


def text_report(result: Result) -> str:
    parts = []
    for stage in result.stages:
        found = figures(stage, result.slos_ms)
        if len(result.stages) > 1:
            parts.append(f"## {stage.label}")
        parts.append(serving_text(serving_tables(stage, found.serving)))
        parts += [table_text(table) for table in other_tables(stage, found)]
    if len(result.stages) > 1:
        parts.append(table_text(sweep_table(result)))
    if result.interrupted:
        parts.append("Stopped by the user: this is what was measured until then.")
    parts.append(f"Seed: {result.arguments.get('seed')}")
    return "\n\n".join(parts)


def serving_text(parts: Sequence[Table]) -> str:
    """Return vLLM's table in the form in which scripts look for it."""
    lines: list[str] = []
    for part in parts:
        lines.append(part.title.center(_WIDTH, "-") if lines else " Serving Benchmark Result ".center(_WIDTH, "="))
        lines += [f"{name + ':':<40} {value:<10}" for name, value in part.rows]
    return "\n".join([*lines, "=" * _WIDTH])


def table_text(table: Table) -> str:
    rows = [table.headings, *table.rows] if any(table.headings) else list(table.rows)
    lines = [f"{table.title}:", *(f"  {line}" for line in aligned(rows))]
    return "\n".join(lines + ([table.note] if table.note else []))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if at > 0 and width <= _SENTENCE else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def markdown_report(result: Result) -> str:
    parts = [f"# Load test of {result.arguments.get('model')}, {result.began_at}"]
    if result.interrupted:
        parts.append("Stopped by the user: this is what was measured until then.")
    parts.append(table_markdown(about(result)))
    if len(result.stages) > 1:
        parts.append(table_markdown(sweep_table(result)))
    for stage in result.stages:
        found = figures(stage, result.slos_ms)
        parts.append(f"## {stage.label}")
        tables = (*serving_tables(stage, found.serving), *other_tables(stage, found))
        parts += map(table_markdown, tables)
    return "\n\n".join(parts) + "\n"


def about(result: Result) -> Table:
    asked = [(name, str(value)) for name, value in result.workload.items()]
    limits = ", ".join(f"{name} {limit:g}" for name, limit in result.slos_ms.items())
    slos = [("SLOs (ms)", limits)] if limits else []
    where = [(f"client: {name}", str(value)) for name, value in result.environment.items()]
    version = [("server", str(said))] if (said := result.arguments.get("server")) else []
    server = [("url", str(result.arguments.get("url"))), *version, ("seed", str(result.arguments.get("seed")))]
    return Table("What was run", ("", ""), [*server, *asked, *slos, *where])


def table_markdown(table: Table) -> str:
    rule = ["---", *["---:"] * (len(table.headings) - 1)]
    lines = [f"### {table.title}\n", _row(table.headings), _row(rule), *map(_row, table.rows)]
    return "\n".join(lines + ([f"\n{table.note}"] if table.note else []))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
