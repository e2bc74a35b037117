"""What a run is made of: each part brings its kind of chaos about and returns what is to be reported, as Markdown."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.overlap.network import NetworkError, refuse_unprivileged
from tests.chaos import schedule
from tests.chaos.cluster import Cluster, Shape
from tests.chaos.links import missing_tools
from tests.chaos.matrix import fault_table, memory_table, results_of, storm_summary, storm_table
from tests.chaos.memory import FEW_KERNELS, beyond
from tests.chaos.orders import Orders
from tests.chaos.outcome import Outcome
from tests.chaos.phases import ORDER, Phase
from tests.chaos.results import read
from tests.chaos.runs import (
    StormSize,
    plain_server,
    references_from,
    run_cuts,
    run_faults,
    run_measured_storm,
    run_storm,
)
from tests.chaos.silences import RATE_PER_S, UNHURRIED, Stops
from tests.chaos.workload import Reference
from tests.e2e.stack import Server, Stack, running_stack

SHARES: Final = {
    "aborts": 0.4,
    "kills": 0.3,
    "stalls": 0.2,
    "links": 0.1,
    "silences": 0.0,
}  # of the time, in a whole run
PARTS: Final = tuple(SHARES)
AT_ONCE: Final = 64
AT_ONCE_AMID_ORDERS: Final = 32  # so that nodes have places for what moves to them
STEADY_ABORTS: Final = 5_000  # memory is judged from there on; in shorter storms every process's caches still fill
FAMILIES, MEMBERS = 12, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """How much at most of each, whatever the time."""

    aborts: int = 10_000
    kills: int = 100
    stalls: int = 50
    links: int = 24
    silences: int = 100


class Run:
    """Runs parts, one after the other, and collects what did not hold."""

    def __init__(
        self,
        stack: Stack,
        shape: Shape,
        *,
        seed: int,
        amounts: Amounts,
        phases: tuple[Phase, ...] = ORDER,
        kept: Path | None = None,
    ) -> None:
        """Start a plain server and get the right answers from it.

        Clients leave and processes are killed in the given `phases` of a request. Outcomes are added to those that are `kept`.
        """
        self.problems: list[str] = []
        self._stack = stack
        self._shape = shape
        self._seed = seed
        self._amounts = amounts
        self._phases = phases
        self._kept = kept
        self._plain: Server = plain_server(stack)
        has_turns = shape.transfer.both_ways  # so that answers that have returned are used
        self._references: Sequence[Reference] = references_from(
            self._plain, stack.model, seed, FAMILIES, MEMBERS, has_turns=has_turns
        )
        self._parts: dict[str, Callable[[float], str]] = {
            "aborts": self._aborts_amid_orders if shape.transfer.both_ways else self._aborts,
            "kills": self._kills,
            "stalls": self._stalls,
            "links": self._links,
            "silences": self._silences,
        }

    def do(self, part: str, seconds: float) -> str:
        """Run one part for some time at most, and say how long it took."""
        begun = time.monotonic()
        before = len(self.problems)
        report = self._parts[part](seconds)
        how = f"`{part}`: {time.monotonic() - begun:.0f} s, seed {self._seed}, {len(self.problems) - before} problems, "
        load = os.getloadavg()[1]
        return f"{report}\n\n{how}load {load:.1f} on {len(os.sched_getaffinity(0))} cores over the last 5 minutes."

    def _aborts(self, seconds: float) -> str:
        """On servers whose memory says something; see `memory.py`."""
        folder = self._stack.folder / "aborts"
        folder.mkdir()
        with running_stack(folder, preload="", env=FEW_KERNELS) as stack:
            plain, cluster = plain_server(stack), Cluster(stack, self._shape)
            size = StormSize(self._seed, self._amounts.aborts, seconds, AT_ONCE, self._phases)
            storm = run_measured_storm(cluster, plain, self._references, size)
            preempted = {node.name: int(node.metrics()["vllm:num_preemptions_total"]) for node in cluster.nodes}
        growth = storm.our_growth, storm.plain_growth
        self.problems += [*storm.ours.problems, *storm.plain.problems]
        if storm.ours.aborts >= STEADY_ABORTS:
            self.problems += beyond(*growth)
        text = [storm_summary(storm.ours), f"Preemptions: {results_of(Counter(preempted))}."]
        return "\n\n".join([*text, storm_table(storm.ours), memory_table(*growth)])

    def _aborts_amid_orders(self, seconds: float) -> str:
        """Without a word on memory."""
        cluster = Cluster(self._stack, self._shape)
        try:
            size = StormSize(self._seed, self._amounts.aborts, seconds, AT_ONCE_AMID_ORDERS, self._phases)
            storm = run_storm(cluster, self._references, size)
        finally:
            cluster.stop()
        self.problems += storm.problems
        return "\n\n".join([storm_summary(storm), storm_table(storm), f"Orders: {results_of(storm.orders)}."])

    def _kills(self, seconds: float) -> str:
        peer_timeout_s = self._shape.transfer.peer_timeout_s
        return self._faults(schedule.kills(self._seed, self._amounts.kills, peer_timeout_s, self._phases), seconds)

    def _stalls(self, seconds: float) -> str:
        peer_s, request_s = self._shape.transfer.peer_timeout_s, self._shape.request_timeout_s
        return self._faults(schedule.stalls(self._seed, self._amounts.stalls, peer_s, request_s), seconds)

    def _faults(self, faults: Sequence[schedule.Kill | schedule.Stall], seconds: float) -> str:
        cluster = Cluster(self._stack, self._shape)
        orders = Orders(cluster, self._seed)
        try:
            outcomes = run_faults(
                cluster,
                self._references,
                faults,
                seed=self._seed,
                seconds=seconds,
                orders=orders,
                kept=self._kept,
            )
        finally:
            cluster.stop()
        said = [f"Orders: {results_of(orders.counts)}."] if orders.counts else []
        return "\n\n".join([self._report(outcomes), *said])

    def _links(self, seconds: float) -> str:
        try:
            refuse_unprivileged(os.geteuid())
        except NetworkError as exc:
            return f"Links were not cut: {exc}."
        if missing := missing_tools():
            return f"Links were not cut: {', '.join(missing)} missing."
        cuts = schedule.cuts(self._seed, self._amounts.links, self._shape.transfer.peer_timeout_s)
        return self._report(
            run_cuts(
                self._stack,
                self._references,
                cuts,
                shape=self._shape,
                seed=self._seed,
                seconds=seconds,
                kept=self._kept,
            )
        )

    def _silences(self, seconds: float) -> str:
        shape = replace(self._shape, **UNHURRIED)
        cluster = Cluster(self._stack, shape)
        try:
            stops = Stops(cluster, self._references, seed=self._seed, rate_per_s=RATE_PER_S)
            found = asyncio.run(stops.run_random(self._amounts.silences, seconds))
        finally:
            cluster.stop()
        self.problems += found.problems
        return found.summary()

    def _report(self, outcomes: Sequence[Outcome]) -> str:
        self.problems += [f"{o.fault}: {problem}" for o in outcomes for problem in o.problems]
        if self._kept is not None:
            outcomes = read(self._kept)
        reasons = sum((o.reasons for o in outcomes), Counter[str]())
        later = sum((o.later for o in outcomes), Counter[str]())
        quarantine_s = max((o.quarantine_s for o in outcomes), default=0.0)
        beyond_s = max((o.beyond_share_s for o in outcomes), default=0.0)
        blocks = max((o.quarantined_blocks for o in outcomes), default=0)
        return "\n\n".join(
            [
                f"{sum(o.reached for o in outcomes)} of {len(outcomes)} faults at a moment that was seen.",
                fault_table(outcomes),
                f"Clients that came during a fault: {results_of(later)}.",
                f"Longest quarantine {quarantine_s:.2f} s, of more than its share {beyond_s:.2f} s, largest {blocks} blocks of a node.",
                f"Reasons given: {results_of(reasons)}.",
            ]
        )
