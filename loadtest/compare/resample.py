"""The bootstrap: what a figure would have been, had chance picked other units of the same run."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from baton.loadtest.measures.percentile import percentile
from baton.loadtest.measures.record import LATENCIES
from baton.loadtest.measures.serving import is_good
from baton.loadtest.result import StageResult

SLICES: Final = 20


class Units(Protocol):
    """The units of a stage that are drawn again and again."""

    size: int

    def estimates(self, counts: Sequence[int]) -> Mapping[str, float | None]: ...


class Interval(NamedTuple):
    """Where a value lies, at a confidence."""

    low: float
    high: float


class Difference(NamedTuple):
    """One figure of two runs."""

    a: float
    b: float
    difference: Interval  # of b - a
    ratio: Interval | None  # of b ÷ a; None where a may be 0


def counts_of(rng: random.Random, size: int) -> list[int]:
    counts = [0] * size
    for at in rng.choices(range(size), k=size):
        counts[at] += 1
    return counts


def differences(a: Units, b: Units, *, resamples: int, seed: int, confidence: float) -> dict[str, Difference]:
    exact_a, exact_b = a.estimates([1] * a.size), b.estimates([1] * b.size)
    drawn_a, drawn_b = _draw(a, resamples, f"{seed}/a"), _draw(b, resamples, f"{seed}/b")
    found = {}
    for name, value_a in exact_a.items():
        value_b = exact_b.get(name)
        if value_a is None or value_b is None:
            continue
        pairs = ((one[name], other[name]) for one, other in zip(drawn_a, drawn_b, strict=True))
        both = [(one, other) for one, other in pairs if one is not None and other is not None]
        if both:
            apart = interval([other - one for one, other in both], confidence)
            may_divide = all(one > 0 for one, _ in both)
            ratio = interval([other / one for one, other in both], confidence) if may_divide else None
            found[name] = Difference(value_a, value_b, apart, ratio)
    return found


def _draw(units: Units, resamples: int, seed: str) -> list[Mapping[str, float | None]]:
    rng = random.Random(seed)
    return [units.estimates(counts_of(rng, units.size)) for _ in range(resamples)]


def interval(values: Sequence[float], confidence: float) -> Interval:
    ordered, tail = sorted(values), 50 * (1 - confidence)
    return Interval(percentile(ordered, tail), percentile(ordered, 100 - tail))


class Weighted:
    """Values that belong to units; a unit may have several, or none."""

    def __init__(self, values: Sequence[tuple[float, int]]) -> None:
        """Take values, each with the index of its unit."""
        self._ascending = sorted(values)
        sums: dict[int, tuple[float, int]] = {}
        for value, unit in values:
            total, n = sums.get(unit, (0.0, 0))
            sums[unit] = total + value, n + 1
        self._sums = [(unit, total, n) for unit, (total, n) in sums.items()]

    def mean(self, counts: Sequence[int]) -> float | None:
        n = self._taken(counts)
        return sum(counts[unit] * total for unit, total, _ in self._sums) / n if n else None

    def percentile(self, counts: Sequence[int], percent: float) -> float | None:
        n = self._taken(counts)
        if not n:
            return None
        position = (n - 1) * percent / 100
        below = math.floor(position)
        if percent <= 50:
            low, high = self._ranks(counts, below, min(below + 1, n - 1), from_top=False)
        else:
            high, low = self._ranks(counts, n - 1 - min(below + 1, n - 1), n - 1 - below, from_top=True)
        return low + (high - low) * (position - below)

    def _taken(self, counts: Sequence[int]) -> int:
        return sum(counts[unit] * n for unit, _, n in self._sums)

    def _ranks(self, counts: Sequence[int], first: int, second: int, *, from_top: bool) -> tuple[float, float]:
        """Return the values at two ranks, counted from one end."""
        passed, found = 0, None
        for value, unit in reversed(self._ascending) if from_top else self._ascending:
            passed += counts[unit]
            if found is None and passed > first:
                found = value
            if found is not None and passed > second:
                return found, value
        raise AssertionError("ranks lie within what was taken")


class Metric(NamedTuple):
    """One line of the comparison."""

    name: str
    unit: str
    lower_is_better: bool
    least: int  # values that each run needs for an interval to mean something


METRICS: Final = (
    *(
        Metric(f"{which} {name}", "ms", lower_is_better=True, least=100 if which == "P99" else 10)
        for name, whiches in (
            ("TTFT", ("mean", "median", "P99")),
            ("TPOT", ("mean", "median", "P99")),
            ("ITL", ("mean", "P99")),
            ("E2EL", ("mean", "median", "P99")),
        )
        for which in whiches
    ),
    Metric("request throughput", "req/s", lower_is_better=False, least=10),
    Metric("output throughput", "tok/s", lower_is_better=False, least=10),
    Metric("within SLOs", "share", lower_is_better=False, least=10),
    Metric("failed", "share", lower_is_better=True, least=10),
)


class Requests:
    """A stage's requests; those that were due and never sent come last, and kept no promise."""

    def __init__(self, stage: StageResult, slos_ms: Mapping[str, float]) -> None:
        records = stage.records
        self.sent = len(records)
        self.size = self.sent + stage.unsent
        done = [(at, record) for at, record in enumerate(records) if record.ok]
        series = {
            name.upper(): [(taken_s * 1000, at) for at, record in done for taken_s in record.latencies_s(name)]
            for name in LATENCIES
        }
        self._series = {name: Weighted(values) for name, values in series.items()}
        self._failed = Weighted([(float(not record.ok), at) for at, record in enumerate(records)])
        kept = [float(record.ok and is_good(record, slos_ms)) for record in records] + [0.0] * stage.unsent
        self._good = Weighted([(each, at) for at, each in enumerate(kept)] if slos_ms else [])
        self.values = {name: len(values) for name, values in series.items()}

    def estimates(self, counts: Sequence[int]) -> dict[str, float | None]:
        found = {"failed": self._failed.mean(counts), "within SLOs": self._good.mean(counts)}
        for metric in METRICS:
            which, _, name = metric.name.partition(" ")
            if name in self._series:
                series = self._series[name]
                percent = {"median": 50.0, "P99": 99.0}.get(which)
                found[metric.name] = series.mean(counts) if percent is None else series.percentile(counts, percent)
        return found


class Slices:
    """A stage's time, cut into equal parts, with what was done in each."""

    def __init__(self, stage: StageResult) -> None:
        self.size = SLICES
        self._seconds = stage.duration_s / SLICES
        self._requests, self._tokens = [0.0] * SLICES, [0.0] * SLICES
        for record in stage.records:
            if not record.ok or record.ttft_s is None:
                continue
            self._requests[self._slice(record.ended_s)] += 1
            arrivals = len(record.itls_s) + 1
            at = record.first_token_s
            for gap in (0.0, *record.itls_s):
                at += gap
                self._tokens[self._slice(at)] += record.output_tokens / arrivals

    def estimates(self, counts: Sequence[int]) -> dict[str, float | None]:
        seconds = sum(counts) * self._seconds

        def rate(done: Sequence[float]) -> float | None:
            return sum(n * each for n, each in zip(counts, done, strict=True)) / seconds if seconds else None

        return {"request throughput": rate(self._requests), "output throughput": rate(self._tokens)}

    def _slice(self, at_s: float) -> int:
        return min(int(at_s / self._seconds), SLICES - 1) if self._seconds else 0
