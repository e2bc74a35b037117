"""Where the time to the first token went: both legs and the pushes of some requests, each from the moment it was sent.

Three strips a request. The first is the request as the client and the decode node saw it: on its way there (network, the
proxy and its queue), waiting for KV, until the first token, tokens. The second is the prefill leg's computing, the third its
pushes. A gap before the second is the prompt's way to the prefill node and its queue there.
"""

from collections.abc import Mapping
from html import escape
from typing import Final, NamedTuple

from baton.loadtest.measures.record import Record
from baton.loadtest.report.pictures import LEAST, bar
from baton.loadtest.report.plots import BOTTOM, LEFT, TOP, Axes, Labels, Picture, box_key, frame, svg
from baton.loadtest.report.scales import Scale, nice
from baton.loadtest.result import StageResult

ROWS: Final = 20
_ROW: Final = 26.0
_AFTER: Final = 1.1  # so much of the time to the slowest first token is shown
KEYS: Final = (
    ("way", "on the way to the decode node: network, proxy and its queue"),
    ("waits", "waiting for KV"),
    ("steps", "from COMMIT to the first token"),
    ("tokens", "tokens"),
    ("prefill", "prefill leg"),
    ("pushes", "pushes"),
)
_NOTE: Final = (
    "A gap before the prefill leg is the prompt's way to that node and its queue. Nodes and client are put on one axis by "
    "wall clock: between machines this is as right as their clocks agree."
)


class Stretch(NamedTuple):
    """A part of one request, in s since it was sent."""

    kind: str  # one of `KEYS`
    began_s: float
    ended_s: float


def legs_picture(stage: StageResult, name: str) -> Picture:
    """Return the legs of some requests, from the one with the fastest first token to that with the slowest."""
    told = {each.transfer_id: each.spans for each in stage.legs}
    known = [record for record in stage.records if record.ttft_s is not None and record.transfer_id in told]
    shown = chosen(sorted(known, key=_ttft_s), ROWS)
    height = TOP + BOTTOM + max(_ROW * len(shown), LEAST)
    axes = Axes(Scale(nice(1000 * _AFTER * max(map(_ttft_s, shown), default=1.0))), Scale(1.0))
    title = f"Legs and pushes, {stage.label}"
    labels = Labels(
        name=name,
        title=title,
        description=f"{len(shown)} of {len(known)} requests whose nodes told of them, from the fastest first token to "
        "the slowest: both legs and the pushes, from the moment the request was sent.",
        x="ms since the request was sent",
        y=f"{len(shown)} of {len(known)} requests, from the fastest first token to the slowest",
    )
    rows = [_row(axes, record, told[record.transfer_id], TOP + at * _ROW) for at, record in enumerate(shown)]
    keys = [box_key(css, text) for css, text in KEYS]
    drawing = svg(labels, [frame(axes, labels, height, y_ticks=False), *rows], height)
    return Picture(title, keys, drawing, f"{_NOTE} {stage.legs_note}".strip())


def chosen(ordered: list[Record], most: int) -> list[Record]:
    if len(ordered) <= most:
        return ordered
    return [ordered[round(at * (len(ordered) - 1) / (most - 1))] for at in range(most)]


def stretches(record: Record, spans: Mapping[str, tuple[float, float]]) -> list[Stretch]:
    """Return what is known of a request; an instant that nobody told is in none of them."""
    sent_s, first_s, last_s = record.started_s, _ttft_s(record), record.latency_s or 0.0

    def since(name: str) -> tuple[float, float] | None:
        return (spans[name][0] - sent_s, spans[name][1] - sent_s) if name in spans else None

    found = []
    allocating, waiting, stepping = since("allocation"), since("waiting for KV"), since("commit to first step")
    if allocating:
        found.append(Stretch("way", 0.0, allocating[0]))
        found.append(Stretch("waits", allocating[0], waiting[1] if waiting else allocating[1]))
    if stepping:
        found.append(Stretch("steps", stepping[0], first_s))
    found.append(Stretch("tokens", first_s, last_s))
    found += [Stretch(name, *times) for name in ("prefill", "pushes") if (times := since(name))]
    return found


def _row(axes: Axes, record: Record, spans: Mapping[str, tuple[float, float]], y: float) -> str:
    parts = []
    for kind, began_s, ended_s in stretches(record, spans):
        down, tall = {"prefill": (12.0, 5.0), "pushes": (18.0, 4.0)}.get(kind, (0.0, 10.0))
        if began_s * 1000 < axes.across.most:
            parts.append(bar(axes, kind, (began_s * 1000, ended_s * 1000), y + down, tall))
    said = f"request {record.index}: TTFT {_ttft_s(record) * 1000:.1f} ms, {record.input_tokens} prompt tokens"
    label = f'<text class="row" x="{LEFT - 6}" y="{y + 13:.0f}" text-anchor="end">{record.index}</text>'
    return f"<g><title>{escape(said)}</title>{label}{''.join(parts)}</g>"


def _ttft_s(record: Record) -> float:
    return record.ttft_s or 0.0
