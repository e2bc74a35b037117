"""`python -m tests.chaos`: bring chaos upon a real stack for some time, and print what it did."""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.overlap.network import NetworkError, refuse_unprivileged
from tests.chaos import schedule
from tests.chaos.cluster import Cluster, Shape
from tests.chaos.fences import DOMAINS, Cost, FenceBench, cost_table
from tests.chaos.links import missing_tools
from tests.chaos.matrix import fault_table, memory_table, results_of, storm_summary, storm_table
from tests.chaos.memory import beyond
from tests.chaos.phases import ORDER
from tests.chaos.runs import (
    MemoryReport,
    plain_server,
    references_from,
    run_cuts,
    run_faults,
    run_measured_storm,
)
from tests.chaos.storm import Tally
from tests.chaos.trial import Outcome
from tests.chaos.workload import Reference
from tests.e2e.stack import Server, Stack, running_stack

PARTS: Final = ("aborts", "kills", "stalls", "links")
SHARES: Final = {"aborts": 0.4, "kills": 0.3, "stalls": 0.2, "links": 0.1}  # of the time, where all parts run
AT_ONCE: Final = 64
FAMILIES, MEMBERS = 12, 8


class Run:
    """One run; collects what is to be reported."""

    def __init__(self, stack: Stack, arguments: argparse.Namespace) -> None:
        self._stack = stack
        self._arguments = arguments
        self._shape = Shape()
        self._plain: Server | None = None
        self._references: Sequence[Reference] = ()
        self._sections: list[str] = []
        self.problems: list[str] = []

    def do(self, parts: Sequence[str]) -> str:
        """Run some parts and return the report."""
        self._plain = plain_server(self._stack)
        self._references = references_from(self._plain, self._stack.model, self._arguments.seed, FAMILIES, MEMBERS)
        for part in parts:
            begun = time.monotonic()
            share = SHARES.get(part, 1.0) if len(parts) > 1 else 1.0
            {
                "aborts": self._aborts,
                "kills": self._kills,
                "stalls": self._stalls,
                "links": self._links,
                "fences": self._fences,
            }[part](share * self._arguments.seconds)
            self._sections[-1] += f"\n\n{part}: {time.monotonic() - begun:.0f} s, seed {self._arguments.seed}."
        return "\n\n".join(self._sections)

    def _aborts(self, seconds: float) -> None:
        assert self._plain is not None
        cluster = Cluster(self._stack, self._shape)
        try:
            tally, plain, memory = run_measured_storm(
                cluster,
                self._plain,
                self._references,
                seed=self._arguments.seed,
                aborts=self._arguments.aborts,
                seconds=seconds,
                at_once=AT_ONCE,
            )
            preempted = {node.name: int(node.metrics()["vllm:num_preemptions_total"]) for node in cluster.nodes}
        finally:
            cluster.stop()
        self.problems += [*tally.problems, *plain.problems, *beyond(memory.ours, memory.plain)]
        self._report_storm(tally, memory, preempted)

    def _report_storm(self, tally: Tally, memory: MemoryReport, preempted: dict[str, int]) -> None:
        text = [storm_summary(tally), f"Preemptions: {preempted}."]
        self._sections.append("\n\n".join([*text, storm_table(tally), memory_table(memory.ours, memory.plain)]))

    def _kills(self, seconds: float) -> None:
        peer_timeout_s = self._shape.transfer.peer_timeout_s
        self._faults(schedule.kills(self._arguments.seed, self._arguments.kills, peer_timeout_s), seconds)

    def _stalls(self, seconds: float) -> None:
        shape, arguments = self._shape, self._arguments
        peer_s, request_s = shape.transfer.peer_timeout_s, shape.request_timeout_s
        self._faults(schedule.stalls(arguments.seed, arguments.stalls, peer_s, request_s), seconds)

    def _faults(self, faults: Sequence[schedule.Kill | schedule.Stall], seconds: float) -> None:
        cluster = Cluster(self._stack, self._shape)
        try:
            outcomes = run_faults(cluster, self._references, faults, seed=self._arguments.seed, seconds=seconds)
        finally:
            cluster.stop()
        self._report_faults(outcomes)

    def _links(self, seconds: float) -> None:
        try:
            refuse_unprivileged(os.geteuid())
        except NetworkError as exc:
            self._sections.append(f"Links were not cut: {exc}.")
            return
        if missing := missing_tools():
            self._sections.append(f"Links were not cut: {', '.join(missing)} missing.")
            return
        cuts = schedule.cuts(self._arguments.seed, self._arguments.links, self._shape.transfer.peer_timeout_s)
        self._report_faults(
            run_cuts(self._stack, self._references, cuts, shape=self._shape, seed=self._arguments.seed, seconds=seconds)
        )

    def _report_faults(self, outcomes: Sequence[Outcome]) -> None:
        self.problems += [f"{o.fault}: {problem}" for o in outcomes for problem in o.problems]
        reasons = sum((o.reasons for o in outcomes), Counter[str]())
        later = sum((o.later for o in outcomes), Counter[str]())
        reached = sum(o.reached for o in outcomes)
        quarantine = max((o.quarantine_s for o in outcomes), default=0.0)
        blocks = max((o.quarantined_blocks for o in outcomes), default=0)
        self._sections.append(
            "\n\n".join(
                [
                    f"{reached} of {len(outcomes)} faults at a moment that was seen.",
                    fault_table(outcomes),
                    f"Clients that came during a fault: {results_of(later)}.",
                    f"Longest quarantine {quarantine:.2f} s, largest {blocks} blocks of a node.",
                    f"Reasons given: {results_of(reasons)}.",
                ]
            )
        )

    def _fences(self, seconds: float) -> None:
        del seconds
        costs: list[Cost] = []
        for domains in DOMAINS:
            bench = FenceBench(self._stack, self._references, domains)
            try:
                costs.append(asyncio.run(bench.run(self._arguments.fences)))
            finally:
                bench.stop()
        self._sections.append(cost_table(costs))


def main() -> int:
    """Run and print; exit with 1 if something did not hold."""
    arguments = _parser().parse_args()
    parts = (arguments.only,) if arguments.only else PARTS
    with tempfile.TemporaryDirectory(prefix="baton-chaos-") as folder, running_stack(Path(folder)) as stack:
        run = Run(stack, arguments)
        report = run.do(parts)
    problems = "\n".join(run.problems) or "none"
    text = f"{report}\n\nProblems: {problems}\n"
    print(text)
    if arguments.report:
        arguments.report.write_text(text)
    return 1 if run.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults, over all parts; starts not counted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=(*PARTS, "fences"))
    parser.add_argument("--aborts", type=int, default=10_000, help=f"at most; each of {len(ORDER)} phases has a share")
    parser.add_argument("--kills", type=int, default=100, help="at most")
    parser.add_argument("--stalls", type=int, default=50, help="at most")
    parser.add_argument("--links", type=int, default=24, help="cuts of links, at most")
    parser.add_argument("--fences", type=int, default=10, help="with each number of domains")
    parser.add_argument("--report", type=Path, help="file for the report, as Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
