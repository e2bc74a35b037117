"""The report as one page that needs nothing else: no script, no network, no build. Beside each plot stands its table."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from baton.loadtest.measures.serving import Serving
from baton.loadtest.report.pictures import distributions, legs_picture, over_time, throughput_plots, timeline
from baton.loadtest.report.plots import COLOURS, HEIGHT, LEFT, WIDTH, Picture, swatch
from baton.loadtest.report.tables import TITLES, Table, figures, milliseconds, other_tables, serving_tables, sweep_table
from baton.loadtest.report.text import about
from baton.loadtest.result import Result

_BARS: Final = {  # kind of bar → colour
    "queue": "--idle",
    "first": "--s4",
    "tokens": "--s0",
    "failed": "--bad",
    "way": "--idle",
    "waits": "--s4",
    "steps": "--s1",
    "prefill": "--s3",
    "pushes": "--s2",
}
_FIXED: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #d5dae0; --quiet: #57606a;
  --s0: #0b5cad; --s1: #b3470f; --s2: #1a7f37; --s3: #8250df; --s4: #9a6700; --s5: #bf3989; --bad: #c4161c; --idle: #a3adb8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #12161c; --faint: #353c45; --quiet: #9aa4af;
  --s0: #6cb6ff; --s1: #f69d50; --s2: #6bc46d; --s3: #c4a7ff; --s4: #e3b341; --s5: #fc8dc7; --bad: #ff7b72; --idle: #5d6875; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 76rem;
  margin: 0 auto; padding: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .15rem .7rem .15rem 0; border-bottom: 1px solid var(--faint); text-align: right; }
td { white-space: nowrap; } td:last-child { white-space: normal; min-width: 4rem; }
th[scope=row] { min-width: 5rem; } th[scope=row], thead th:first-child { text-align: left; font-weight: 400; }
figure { margin: 1.2rem 0; max-width: 50rem; } figcaption { font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
.keys { font-weight: 400; font-size: 13px; color: var(--quiet); display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; }
.key { display: inline-flex; align-items: center; gap: .4rem; } .key i { width: 12px; height: 10px; background: currentColor; }
.swatch { width: 28px; height: 10px; }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 0 2rem; }
.plots > div { min-width: 0; }
.headline { font-size: 1.1rem; font-weight: 600; }
.scroll { overflow-x: auto; } .note { color: var(--quiet); max-width: 46rem; }
svg text { fill: var(--quiet); font-size: 12px; } svg .name { fill: var(--ink); } .grid { stroke: var(--faint); }
@media (min-width: 40.01rem) { .plots svg text { font-size: 15px; } }
@media (max-width: 40rem) { svg .line { stroke-width: 3.5; } svg text { font-size: 19px; } svg .row { font-size: 14px; } }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
"""
STYLE: Final = (
    _FIXED
    + "".join(f".{css} {{ fill: var({colour}); color: var({colour}); }}\n" for css, colour in _BARS.items())
    + "".join(f".line.s{n} {{ stroke: var(--s{n}); }} .mark.s{n} {{ fill: var(--s{n}); }}\n" for n in range(COLOURS))
)
_ROW: Final = 24  # height of a line of the key, which stands below the drawing


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


def standalone(picture: Picture, names: Sequence[str]) -> str:
    """Return an SVG file of a plot of lines, for light and dark screens, which a README can show; `names`: of its lines, in their order."""
    height = HEIGHT + _ROW * len(names) + 8
    keys = [
        f'<g transform="translate({LEFT} {HEIGHT + at * _ROW})">{swatch(at)}<text x="38" y="10">{escape(name)}</text></g>'
        for at, name in enumerate(names)
    ]
    size = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    ground = f'<rect width="{WIDTH}" height="{height}" style="fill: var(--paper)"/>'
    drawing = picture.drawing.replace("<svg ", f'<svg width="{WIDTH}" height="{HEIGHT}" ', 1)  # not all of the file's
    title = f"<title>{escape(picture.title)}</title>"
    return f"<svg {size}>{title}<style>{STYLE}</style>{ground}{drawing}{''.join(keys)}</svg>\n"
