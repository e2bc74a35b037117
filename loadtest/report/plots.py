"""Plots as inline SVG: no script, no network. Colours come from the page; lines differ in their dashes too."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 720
HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 44  # margins
_LEGEND: Final = 17  # height of a line of the legend, which stands below the plot
_DASHES: Final = ("", "6 3", "2 3", "8 3 2 3", "1 4", "12 4")


class Series(NamedTuple):
    """One line."""

    name: str
    points: Sequence[tuple[float, float]]


class Axes(NamedTuple):
    """The plotted range; it begins at 0."""

    x_most: float
    y_most: float

    def x(self, value: float) -> float:
        """Return where a value lies on the page."""
        return _LEFT + value / self.x_most * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Likewise, downwards."""
        return HEIGHT - _BOTTOM - value / self.y_most * (HEIGHT - _TOP - _BOTTOM)


class Labels(NamedTuple):
    """What a plot says: to the eye, and to a screen reader."""

    name: str  # unique on the page; letters, digits, dashes
    title: str
    description: str
    x: str
    y: str


def line_plot(labels: Labels, series: Sequence[Series], *, marks: bool = False) -> str:
    """Return lines, with a legend if there are several; `marks`: show the points."""
    points = [point for line in series for point in line.points]
    axes = Axes(nice(max((x for x, _ in points), default=1.0)), nice(max((y for _, y in points), default=1.0)))
    parts = [frame(axes, labels)]
    for at, line in enumerate(series):
        path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in line.points)
        dash = f' stroke-dasharray="{_DASHES[at % 6]}"' if at % 6 else ""
        parts.append(
            f'<polyline class="line s{at % 6}" points="{path}"{dash}><title>{escape(line.name)}</title></polyline>'
        )
        if marks:
            parts += [
                f'<circle class="mark s{at % 6}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="4">'
                f"<title>{escape(line.name)}: {x:g}, {y:g}</title></circle>"
                for x, y in line.points
            ]
    names = [line.name for line in series] if len(series) > 1 else []
    return svg(labels, [*parts, *_legend(names)], HEIGHT + _LEGEND * len(names))


def svg(labels: Labels, parts: Sequence[str], height: int) -> str:
    """Return a whole picture, named for those who cannot see it."""
    ids = f"{labels.name}-title", f"{labels.name}-desc"
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{ids[0]} {ids[1]}">'
        f'<title id="{ids[0]}">{escape(labels.title)}</title><desc id="{ids[1]}">{escape(labels.description)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def frame(axes: Axes, labels: Labels, height: int = HEIGHT, *, y_ticks: bool = True) -> str:
    """Return axes, grid, numbers and names."""
    floor = height - _BOTTOM
    parts = []
    for value in ticks(axes.x_most):
        x = axes.x(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{floor}"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{value:g}</text>')
    for value in ticks(axes.y_most) if y_ticks else ():
        y = axes.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (_TOP + floor) / 2
    parts.append(f'<text x="{(WIDTH + _LEFT) / 2:.0f}" y="{height - 8}" text-anchor="middle">{escape(labels.x)}</text>')
    turned = f'transform="rotate(-90 14 {middle:.0f})"'
    parts.append(f'<text x="14" y="{middle:.0f}" {turned} text-anchor="middle">{escape(labels.y)}</text>')
    return "".join(parts)


def nice(value: float) -> float:
    """Return the end of an axis: the next 1, 2, 2.5 or 5 times a power of ten."""
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def ticks(most: float) -> list[float]:
    """Return five even numbers from 0 to the end."""
    return [round(most * at / 5, 10) for at in range(6)]


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for at, name in enumerate(names):
        y = HEIGHT + 12 + at * _LEGEND
        dash = f' stroke-dasharray="{_DASHES[at % 6]}"' if at % 6 else ""
        x = _LEFT
        parts.append(f'<line class="line s{at % 6}" x1="{x}" y1="{y - 4}" x2="{x + 28}" y2="{y - 4}"{dash}/>')
        parts.append(f'<text x="{x + 34}" y="{y}">{escape(name)}</text>')
    return parts
