"""Simulated beside measured. Pure."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from baton.loadtest.measures.record import Record
from baton.loadtest.plan.simulate import Outcome, Shape

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


class Runs(NamedTuple):
    """The runs of one shape."""

    records: Sequence[Sequence[Record]]  # run by run
    other_cores: float  # CPU that other processes used in that time, most of all runs
    client_late_s: float  # P99 of the client's event loop, most of all runs
    stolen_cores: float = 0.0  # CPU that the host took, most of all runs and rounds of calibration
    repeated: int = 0  # runs and rounds that it disturbed


class Comparison(NamedTuple):
    """One shape."""

    shape: Shape
    simulated: Means
    runs: tuple[Means, ...]
    prefill_busy: float  # simulated
    decode_busy: float
    other_cores: float  # as of the runs
    client_late_s: float
    stolen_cores: float
    repeated: int

    @property
    def measured(self) -> Means:
        """The median over the runs of each mean."""
        return Means(median(run.ttft_s for run in self.runs), median(run.tpot_s for run in self.runs))

    @property
    def deviation(self) -> tuple[float, float]:
        """By how much the simulation is off, of TTFT and of TPOT; above 0: it is too slow."""
        measured = self.measured
        return self.simulated.ttft_s / measured.ttft_s - 1, self.simulated.tpot_s / measured.tpot_s - 1

    @property
    def right(self) -> bool:
        """Whether both are within what is allowed."""
        return all(abs(off) <= ALLOWED for off in self.deviation)


def compare(shape: Shape, simulated: Outcome, runs: Runs) -> Comparison:
    """Compare the runs of one shape with its simulation."""
    return Comparison(
        shape,
        Means.of(simulated.records),
        tuple(Means.of(records) for records in runs.records),
        simulated.prefill_busy,
        simulated.decode_busy,
        runs.other_cores,
        runs.client_late_s,
        runs.stolen_cores,
        runs.repeated,
    )
