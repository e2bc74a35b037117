"""The report in Markdown."""

from collections.abc import Sequence

from baton.loadtest.report.figures import figures
from baton.loadtest.report.tables import Table, other_tables, serving_tables, sweep_table
from baton.loadtest.result import Result


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
