"""Two runs on one page: the verdicts, both distributions of each latency, and both Pareto fronts of throughput and latency."""

from collections.abc import Sequence
from html import escape

from baton.loadtest.report.html import figure, page, plots, table_html, when
from baton.loadtest.report.markdown import about
from baton.loadtest.report.pictures import distributions, throughput_plots
from baton.loadtest.report.tables import Table
from baton.loadtest.result import Result


def comparison_page(a: Result, b: Result, verdicts: Sequence[Table], note: str) -> str:
    """Return the page; it needs nothing else."""
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
