"""How pages look: one sheet for the report and for comparisons, for light and dark screens, narrow and wide ones."""

from typing import Final

from baton.loadtest.report.plots import COLOURS

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
