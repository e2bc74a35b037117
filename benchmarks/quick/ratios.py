"""Samples → figures, and figures beside a baseline's. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from baton.loadtest.report.text import aligned
from benchmarks.harness import Spread, spread

HIGHER: Final = "HIGHER"  # costs more than in any round of the baseline
LOWER: Final = "LOWER"
NEW: Final = "new"
NOT_MEASURED: Final = "not measured"
_HEADINGS: Final = ("figure", "baseline", "now", "now ÷ baseline", "")
_DASH: Final = "–"


class Sample(NamedTuple):
    """One ratio of one round."""

    name: str
    ratio: float


class Line(NamedTuple):
    """A figure, and what it was in the baseline."""

    name: str
    baseline: Spread | None
    now: Spread | None

    @property
    def change(self) -> float | None:
        return self.now.median / self.baseline.median if self.now and self.baseline else None

    @property
    def mark(self) -> str:
        if self.now is None:
            return NOT_MEASURED
        if self.baseline is None:
            return NEW
        if self.now.least > self.baseline.most:
            return HIGHER
        return LOWER if self.now.most < self.baseline.least else ""


def figures(samples: Iterable[Sample]) -> dict[str, Spread]:
    found: dict[str, list[float]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample.ratio)
    return {name: spread(ratios) for name, ratios in found.items()}


def beside(baseline: Mapping[str, Spread], now: Mapping[str, Spread]) -> list[Line]:
    names = [*now, *(name for name in baseline if name not in now)]
    return [Line(name, baseline.get(name), now.get(name)) for name in names]


def table(lines: Sequence[Line]) -> str:
    return "\n".join(aligned([_HEADINGS, *map(_row, lines)]))


def _row(line: Line) -> tuple[str, ...]:
    change = _DASH if line.change is None else f"{line.change:.2f}"
    return line.name, _shown(line.baseline), _shown(line.now), change, line.mark


def _shown(found: Spread | None) -> str:
    return found.text(3) if found else _DASH
