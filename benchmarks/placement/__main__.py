"""`python -m benchmarks.placement`: goodput of two simulated nodes in three setups, with the proxy's own planner, in virtual time."""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import mean
from typing import Final, NamedTuple

from benchmarks.harness import markdown_table
from benchmarks.placement.engine import HARDWARE
from benchmarks.placement.simulation import Setup, simulate
from benchmarks.placement.traffic import MIXES

UTILISATIONS: Final = {"cpu": (0.45, 0.6, 0.75), "gpu": (5.0, 6.0)}  # 1: all that two plain `cpu` nodes can do
LEAST_SECONDS: Final = 40.0  # until each kind of request has come in every mix
HEADINGS: Final = ("mix", "hardware", "utilisation", "plain", "disaggregated", "baton", "baton ÷ better")


class Goodput(NamedTuple):
    """The share of requests that met both SLOs, in each setup."""

    plain: float
    disaggregated: float
    baton: float

    @property
    def ratio(self) -> float:
        """Baton's ÷ that of the better of the two others."""
        better = max(self.plain, self.disaggregated)
        return self.baton / better if better else 1.0


def measure(mix: str, hardware: str, utilisation: float, *, seeds: int, seconds: float) -> Goodput:
    """Simulate each setup, and pool the requests of all seeds."""

    def share(setup: Setup) -> float:
        ask = partial(simulate, setup, mix, HARDWARE[hardware], utilisation=utilisation, seconds=seconds)
        runs = [ask(seed=seed) for seed in range(1, seeds + 1)]
        return sum(run.good for run in runs) / sum(run.requests for run in runs)

    return Goodput(share("plain"), share("disaggregated"), share("baton"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description=__doc__)
    add = parser.add_argument
    add("--mix", nargs="+", choices=MIXES, default=MIXES)
    add("--hardware", nargs="+", choices=list(HARDWARE), default=list(HARDWARE))
    add("--seeds", type=int, default=6, help="runs of each setup, with the seeds 1, 2, …")
    add("--seconds", type=float, default=120.0, help="in which conversations begin, of virtual time")
    given = parser.parse_args(argv)
    if given.seeds < 1 or given.seconds < LEAST_SECONDS:
        parser.error(f"--seeds is 1 at least, and --seconds {LEAST_SECONDS:g}")
    cells = [(mix, name, load) for mix in given.mix for name in given.hardware for load in UTILISATIONS[name]]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        one = partial(measure, seeds=given.seeds, seconds=given.seconds)
        found = [*pool.map(one, *zip(*cells, strict=True))]
    rows = [
        [mix, name, f"{load:g}", *(f"{share:.3f}" for share in goodput), f"{goodput.ratio:.2f}"]
        for (mix, name, load), goodput in zip(cells, found, strict=True)
    ]
    ratios = [goodput.ratio for goodput in found]
    print(markdown_table(HEADINGS, rows))
    print(f"\n{HEADINGS[-1]}: mean {mean(ratios):.3f}, worst {min(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
