"""From rounds to a ratio, and how sure it is. Pure."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, NamedTuple

from baton.loadtest.compare.bootstrap import Interval, counts_of
from baton.loadtest.measures.percentile import percentile
from benchmarks.harness import markdown_table
from benchmarks.pipeline.figures import Load, Round

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 4000
FIGURES: Final = {"ITL": 2, "TTFT": 1, "throughput": 0}
"""Name → place in a `Round`."""


class Ratio(NamedTuple):
    """A figure of one runner by that of another, over pairs of rounds that were taken one after the other."""

    mean: float  # geometric
    interval: Interval

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.interval.low:.3f} to {self.interval.high:.3f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load on every server."""

    load: Load
    rounds: Mapping[str, Sequence[Round]]  # server → its rounds; the same index is a pair


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the geometric mean of the pairs' ratios, with a bootstrap interval over the pairs."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    rng = random.Random(1)  # repeatable, not secret
    drawn = sorted(
        sum(log * count for log, count in zip(logs, counts_of(rng, len(logs)), strict=True)) / len(logs)
        for _ in range(RESAMPLES)
    )
    tail = 50 * (1 - CONFIDENCE)
    return Ratio(
        math.exp(fmean(logs)), Interval(math.exp(percentile(drawn, tail)), math.exp(percentile(drawn, 100 - tail)))
    )


def table(cells: Sequence[Cell], reference: str) -> str:
    """Return a Markdown table: medians, and ratios to a server with their intervals."""
    others = [name for name in cells[0].rounds if name != reference]
    heads = ["load", "figure", f"{reference}, median", *(f"{name} ÷ {reference}" for name in others)]
    rows = []
    for cell in cells:
        for name, at in FIGURES.items():
            values = {server: [round_[at] for round_ in rounds] for server, rounds in cell.rounds.items()}
            middle = median(values[reference])
            shown = f"{middle:.0f} tokens/s" if name == "throughput" else f"{middle * 1000:.2f} ms"
            ratios = [str(ratio(values[other], values[reference])) for other in others]
            rows.append([cell.load.name, name, shown, *ratios])
    return markdown_table(heads, rows)
