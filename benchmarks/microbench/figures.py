"""From samples to figures, and how a figure is shown. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from baton.loadtest.measures import percentile
from baton.loadtest.measures.percentile import Spread

_SIGNS: Final = {"at most": "≤", "at least": "≥"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure ought to reach."""

    kind: Literal["at most", "at least"]
    bound: float

    def is_met(self, value: float) -> bool:
        return value <= self.bound if self.kind == "at most" else value >= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number, and others that help to read it."""

    name: str
    value: float
    unit: str = ""  # empty: a ratio
    target: Target | None = None
    details: dict[str, float] = field(default_factory=dict)  # name with unit → value


def line(figure: Figure) -> str:
    shown = f"{figure.name:<52} {number(figure.value):>7} {figure.unit or '×':<7}"
    if (target := figure.target) is not None:
        met = "met" if target.is_met(figure.value) else "MISSED"
        shown += f" {_SIGNS[target.kind]} {number(target.bound)} {met}"
    if figure.details:
        shown += "  (" + ", ".join(f"{name} {number(value)}" for name, value in figure.details.items()) + ")"
    return shown.rstrip()


def number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def spread(samples: Sequence[float], scale: float = 1.0) -> Spread:
    return percentile.spread(sample * scale for sample in samples)
