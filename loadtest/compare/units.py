"""What of a run is resampled.

Latencies and shares: whole requests, since the gaps of one stream depend on each other. Throughput: slices of the run's
time, since it is no property of a request; neighbouring slices are alike, so these intervals are rather too narrow.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from baton.loadtest.compare.bootstrap import Weighted
from baton.loadtest.measures.shares import is_good
from baton.loadtest.result import StageResult

SLICES: Final = 20


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
    """A stage's requests."""

    def __init__(self, stage: StageResult, slos_ms: Mapping[str, float]) -> None:
        records = stage.records
        self.size = len(records)
        done = [(at, record) for at, record in enumerate(records) if record.ok]
        self._series = {
            "TTFT": Weighted([(r.ttft_s * 1000, at) for at, r in done if r.ttft_s is not None]),
            "TPOT": Weighted([(tpot * 1000, at) for at, r in done if (tpot := r.tpot_s) is not None]),
            "ITL": Weighted([(gap * 1000, at) for at, r in done for gap in r.itls_s]),
            "E2EL": Weighted([(r.latency_s * 1000, at) for at, r in done if r.latency_s is not None]),
        }
        self._failed = Weighted([(float(not record.ok), at) for at, record in enumerate(records)])
        good = [(float(r.ok and is_good(r, slos_ms)), at) for at, r in enumerate(records)] if slos_ms else []
        self._good = Weighted(good)
        self.values = {"TTFT": len(done), "E2EL": len(done), "ITL": sum(len(r.itls_s) for _, r in done)}
        self.values["TPOT"] = sum(record.tpot_s is not None for _, record in done)

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
            at = record.started_s + record.ttft_s
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
