"""The report as one page that needs nothing else: no script, no network, no build step. Beside each plot stands its table."""

from collections.abc import Iterable, Sequence
from html import escape

from baton.loadtest.measures.serving import Serving
from baton.loadtest.report.pictures import distributions, legs_picture, over_time, throughput_plots, timeline
from baton.loadtest.report.plots import Picture
from baton.loadtest.report.style import STYLE
from baton.loadtest.report.tables import TITLES, Table, figures, milliseconds, other_tables, serving_tables, sweep_table
from baton.loadtest.report.text import about
from baton.loadtest.result import Result


def html_report(result: Result) -> str:
    title = f"Load test of {result.arguments.get('model')}, {when(result)}"
    parts = [f"<h1>{escape(title)}</h1>"]
    if result.interrupted:
        parts.append("<p><strong>Stopped by the user: this is what was measured until then.</strong></p>")
    parts.append(table_html(about(result)))
    if len(result.stages) > 1:
        parts += [
            "<h2>Throughput and latency</h2>",
            plots(map(figure, throughput_plots([("", result)]))),
            table_html(sweep_table(result)),
        ]
    parts += ["<h2>Latencies</h2>", plots(_latencies(result))]
    for number, stage in enumerate(result.stages):
        found = figures(stage, result.slos_ms)
        parts.append(f"<h2>{escape(stage.label)}</h2>")
        parts.append(f'<p class="headline">{escape(headline(found.serving))}</p>')
        parts += map(table_html, (serving_tables(stage, found.serving)[0], *other_tables(stage, found)))
        parts.append(figure(over_time(stage, f"tokens-{number}")))
        parts.append(figure(timeline(stage, f"timeline-{number}")))
        if stage.legs:
            parts.append(figure(legs_picture(stage, f"legs-{number}")))
    return page(title, parts)


def headline(served: Serving) -> str:
    ttft = served.ttft
    first = (
        f"first token after {ttft.median * 1000:.0f} ms (median), {ttft.p99 * 1000:.0f} ms (P99); " if ttft.n else ""
    )
    return (
        f"{served.output_tokens_per_s:.0f} output tokens/s, {served.requests_per_s:.1f} requests/s; {first}"
        f"{served.failed} of {served.completed + served.failed} failed; at most {served.peak_concurrent_requests:.0f} at once"
    )


def when(result: Result) -> str:
    return result.began_at.replace("T", " ").replace("+00:00", " UTC")


def page(title: str, parts: Sequence[str]) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n'


def table_html(table: Table) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(row[0])}</th>{_cells(row[1:])}</tr>' for row in table.rows)
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.headings) if any(table.headings) else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    caption = f"<caption>{escape(table.title)}</caption>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>{caption}{top}<tbody>{rows}</tbody></table></div>{note}'


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def figure(picture: Picture) -> str:
    keys = f'<div class="keys">{"".join(picture.keys)}</div>' if picture.keys else ""
    note = f'<p class="note">{escape(picture.note)}</p>' if picture.note else ""
    return f"<figure><figcaption>{escape(picture.title)}{keys}</figcaption>{picture.drawing}{note}</figure>"


def plots(cells: Iterable[str]) -> str:
    return f'<div class="plots">{"".join(f"<div>{cell}</div>" for cell in cells)}</div>'


def _latencies(result: Result) -> list[str]:
    served = [(stage.label, figures(stage, result.slos_ms).serving) for stage in result.stages]
    parts = []
    for name, picture in zip(TITLES, distributions([(stage.label, stage) for stage in result.stages]), strict=True):
        short, title = TITLES[name]
        rows = []
        for label, each in served:
            found = getattr(each, name)
            shown = (found.mean, found.median, found.p90, found.p99)
            rows.append((label, *(milliseconds(value, found) for value in shown), str(found.n)))
        table = Table(f"{title}, {short} (ms)", ("load", "mean", "median", "P90", "P99", "N"), rows)
        parts.append(figure(picture) + table_html(table))
    return parts
