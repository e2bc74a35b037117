"""Simulated beside measured: compared, and told as a table and as JSON. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec

from baton.loadtest.measures.record import Record
from baton.loadtest.plan.calibration import Calibration
from baton.loadtest.plan.simulate import Outcome, Shape
from baton.loadtest.report.tables import Table

ALLOWED = 0.15  # deviation from the median of the runs


class Means(NamedTuple):
    """Mean times of one run, in s."""

    ttft_s: float
    tpot_s: float

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Means":
        return cls(
            fmean(record.ttft_s for record in records if record.ttft_s is not None),
            fmean(tpot_s for record in records if (tpot_s := record.tpot_s) is not None),
        )


class Noise(NamedTuple):
    """What else took the CPU while a shape was measured; the most of all runs."""

    other_cores: float  # that other processes used
    client_late_s: float  # P99 of the client's event loop
    stolen_cores: float = 0.0  # that the host took, rounds of calibration included
    repeated: int = 0  # runs and rounds that it disturbed


class Comparison(NamedTuple):
    """One shape."""

    shape: Shape
    simulated: Means
    runs: tuple[Means, ...]
    prefill_busy: float  # simulated
    decode_busy: float
    noise: Noise

    @property
    def measured(self) -> Means:
        return Means(median(run.ttft_s for run in self.runs), median(run.tpot_s for run in self.runs))

    @property
    def deviation(self) -> tuple[float, float]:
        """By how much the simulation is off, of TTFT and of TPOT; above 0: it is too slow."""
        measured = self.measured
        return self.simulated.ttft_s / measured.ttft_s - 1, self.simulated.tpot_s / measured.tpot_s - 1

    @property
    def right(self) -> bool:
        return all(abs(off) <= ALLOWED for off in self.deviation)


def compare(shape: Shape, simulated: Outcome, runs: Sequence[Sequence[Record]], noise: Noise) -> Comparison:
    means = tuple(map(Means.of, runs))
    return Comparison(shape, Means.of(simulated.records), means, simulated.prefill_busy, simulated.decode_busy, noise)


def comparison_table(found: Sequence[Comparison]) -> Table:
    rows = []
    for one in found:
        for at, name in enumerate(("TTFT", "TPOT")):
            runs = sorted(run[at] * 1000 for run in one.runs)
            rows.append(
                (
                    f"{one.shape.prefill}P{one.shape.decode}D mean {name} (ms)",
                    f"{one.simulated[at] * 1000:.1f}",
                    f"{one.measured[at] * 1000:.1f}",
                    f"{runs[0]:.1f} to {runs[-1]:.1f}",
                    f"{one.deviation[at]:+.1%}",
                    f"{one.prefill_busy if at == 0 else one.decode_busy:.0%}",
                    f"{one.noise.other_cores:.2f}",
                    f"{one.noise.stolen_cores:.2f}",
                    str(one.noise.repeated),
                )
            )
    headings = (
        *("", "simulated", "median of the runs", "the runs", "deviation", "P (TTFT) or D (TPOT) busy, simulated"),
        *("cores others used, at most", "cores the host took, at most", "repeated for that"),
    )
    right = sum(one.right for one in found)
    note = f"{right} of {len(found)} shapes within {ALLOWED:.0%}, in both."
    return Table("Simulated beside measured", headings, rows, note)


def as_plain(
    found: Sequence[Comparison], calibrations: Sequence[Calibration], about: Mapping[str, Any]
) -> dict[str, Any]:
    shapes = [
        {
            **one.shape._asdict(),
            "simulated": one.simulated._asdict(),
            "measured": one.measured._asdict(),
            "runs": [run._asdict() for run in one.runs],
            "deviation": dict(zip(("ttft", "tpot"), one.deviation, strict=True)),
            "prefill_busy": one.prefill_busy,
            "decode_busy": one.decode_busy,
            **one.noise._asdict(),
        }
        for one in found
    ]
    return {"about": dict(about), "calibrations": msgspec.to_builtins(calibrations), "shapes": shapes}
