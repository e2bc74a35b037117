"""Plots as inline SVG: no script, no network. Colours come from the page; lines differ in their dashes too.

What is said with words stands outside the drawing, as text of the page: titles and keys are as large on a telephone as
elsewhere. Inside are numbers and the names of the axes, for which there is room at twice their size.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple, Self

from baton.loadtest.measures.percentile import percentile

WIDE: Final = 20.0  # largest value ÷ median: beyond it, a scale from 0 would show one value and a wall
_STEPS: Final = (1, 2, 2.5, 5, 10)
_FEW_DECADES: Final = 2
_MANY_DECADES: Final = 6
WIDTH: Final = 720
HEIGHT: Final = 320
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 34, 60  # margins
COLOURS: Final = 6
_NO_VALUES: Final = (
    f'<text class="name" x="{WIDTH / 2:.0f}" y="{HEIGHT / 2 - 14:.0f}" text-anchor="middle">no values</text>'
)
_DASHES: Final = ("", "6 3", "2 3", "8 3 2 3", "1 4", "12 4")


class Scale(NamedTuple):
    """A plotted range; it begins at 0, or is logarithmic where a few values are far from all others."""

    most: float
    least: float = 0.0  # above 0: logarithmic, from there

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        above_0 = sorted(value for value in values if value > 0)
        if not above_0:
            return cls(1.0)
        if above_0[-1] <= WIDE * percentile(above_0, 50):
            return cls(nice(above_0[-1]))
        least = 10.0 ** math.floor(math.log10(percentile(above_0, 1)))
        return cls(10.0 ** math.ceil(math.log10(above_0[-1]) - 1e-9), least)

    @property
    def logarithmic(self) -> bool:
        """Whether equal distances are equal factors."""
        return self.least > 0

    def share(self, value: float) -> float:
        if not self.logarithmic:
            return value / self.most
        return math.log(max(value, self.least) / self.least) / math.log(self.most / self.least)

    def ticks(self) -> list[float]:
        if not self.logarithmic:
            step = _step(self.most)
            return [round(step * at, 10) for at in range(round(self.most / step) + 1)]
        first, last = round(math.log10(self.least)), round(math.log10(self.most))
        every = -(-(last - first) // _MANY_DECADES)
        between = (1, 2, 5) if last - first <= _FEW_DECADES else (1,)
        found = [step * 10.0**power for power in range(first, last, every) for step in between]
        return [*found, 10.0**last]


def nice(value: float) -> float:
    """Return the end of an axis that begins at 0: a few round steps, the last one at the value or above it."""
    if not value > 0:
        return 1.0
    step = _step(value)
    return step * math.ceil(value / step - 1e-9)


def _step(value: float) -> float:
    """Return a round number that fits about five times."""
    power = 10.0 ** math.floor(math.log10(value / 5))
    return next(step * power for step in _STEPS if step * power >= value / 5 * (1 - 1e-9))


class Series(NamedTuple):
    """One line of a plot."""

    name: str
    points: Sequence[tuple[float, float]]


class Axes(NamedTuple):
    """Both ranges, and where they lie on the page."""

    across: Scale
    up: Scale

    def x(self, value: float) -> float:
        return LEFT + self.across.share(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.up.share(value) * (HEIGHT - TOP - BOTTOM)


class Labels(NamedTuple):
    """What a plot says: to the eye, and to a screen reader."""

    name: str  # unique on the page; letters, digits, dashes
    title: str
    description: str
    x: str
    y: str


class Picture(NamedTuple):
    """A drawing and the words around it."""

    title: str
    keys: Sequence[str]  # HTML: a swatch and its name each
    drawing: str
    note: str = ""


def line_plot(labels: Labels, series: Sequence[Series], *, marks: bool = False, kin: int = 1) -> Picture:
    """Return lines, with a key if there are several; `marks`: show the points; `kin`: so many in succession have one colour."""
    points = [point for line in series for point in line.points]
    axes = Axes(Scale.of([x for x, _ in points]), Scale.of([y for _, y in points]))
    parts = [frame(axes, labels), *([] if points else [_NO_VALUES])]
    for at, line in enumerate(series):
        path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in line.points)
        parts.append(
            f'<polyline class="line s{_colour(at, kin)}"{_dash(at, kin)} points="{path}">{_hover(line.name)}</polyline>'
        )
        if marks or len(line.points) == 1:
            parts += [
                f'<circle class="mark s{_colour(at, kin)}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="4">'
                f"{_hover(f'{line.name}: {x:g}, {y:g}')}</circle>"
                for x, y in line.points
            ]
    keys = [_line_key(at, kin, line.name) for at, line in enumerate(series)] if len(series) > 1 else []
    return Picture(labels.title, keys, svg(labels, parts, HEIGHT))


def svg(labels: Labels, parts: Sequence[str], height: float) -> str:
    ids = f"{labels.name}-title", f"{labels.name}-desc"
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="{ids[0]} {ids[1]}">'
        f'<title id="{ids[0]}">{escape(labels.title)}</title><desc id="{ids[1]}">{escape(labels.description)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def frame(axes: Axes, labels: Labels, height: float = HEIGHT, *, y_ticks: bool = True) -> str:
    floor, end = height - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in axes.across.ticks():
        x = axes.x(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{floor:.0f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 26:.0f}" text-anchor="middle">{_number(value)}</text>')
    for value in axes.up.ticks() if y_ticks else ():
        y = axes.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{end}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 5:.1f}" text-anchor="end">{_number(value)}</text>')
    named = f'<text class="name" x="{end}" y="{height - 8:.0f}" text-anchor="end">{_name(labels.x, axes.across)}</text>'
    upwards = f'<text class="name" x="2" y="15">{_name(labels.y, axes.up)}</text>'
    return "".join([*parts, named, upwards])


def box_key(css: str, name: str) -> str:
    return f'<span class="key"><i class="{css}"></i>{escape(name)}</span>'


def swatch(at: int, kin: int = 1) -> str:
    return f'<line class="line s{_colour(at, kin)}"{_dash(at, kin)} x1="0" y1="5" x2="28" y2="5"/>'


def _line_key(at: int, kin: int, name: str) -> str:
    inside = f'<svg class="swatch" aria-hidden="true" viewBox="0 0 28 10">{swatch(at, kin)}</svg>{escape(name)}'
    return f'<span class="key">{inside}</span>'


def _colour(at: int, kin: int) -> int:
    return at // kin % COLOURS


def _dash(at: int, kin: int) -> str:
    """Lines of one colour differ in their dashes, and so do those of different colours, unless they are kin."""
    dash = _DASHES[(at % kin if kin > 1 else at + at // COLOURS) % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _hover(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _name(text: str, scale: Scale) -> str:
    return escape(f"{text}, logarithmic" if scale.logarithmic else text)


def _number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    if value >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:g}"
