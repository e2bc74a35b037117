"""Engines that are stopped for seconds under a steady load: nothing is refused, and every answer is exact.

python -m tests.chaos --only silences
"""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.actors import engine_of
from tests.chaos.cluster import Cluster
from tests.chaos.crowd import Crowd
from tests.chaos.matrix import results_of, table
from tests.chaos.verdict import Result
from tests.chaos.workload import Reference
from tests.e2e.stack import Server

RATE_PER_S: Final = 8.0
STOPPED_S: Final = (0.5, 8.0)
PAUSE_S: Final = (0.1, 1.0)  # between two stops by one stopper
STOPPERS: Final = 2  # so that both nodes of a role are stopped at once, now and then
# Pools that hold what eight seconds of silence pile up, and time for it to be answered on a crowded machine.
UNHURRIED: Final[dict[str, Any]] = {
    "prefill_blocks": 256,
    "decode_blocks": 512,
    "layer_s": 0.0,
    "request_timeout_s": 120.0,
}
ANSWERED_WITHIN_S: Final = 120.0  # after the last stop; guards against hanging


@dataclass(slots=True)
class Silences:
    """What was done, and what the clients got."""

    stops: list[tuple[str, float]] = field(default_factory=list)  # name of the node, s
    results: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def summary(self) -> str:
        rows = []
        for name in sorted({name for name, _ in self.stops}):
            lengths_s = [length_s for stopped, length_s in self.stops if stopped == name]
            rows.append([name, str(len(lengths_s)), f"{sum(lengths_s):.0f}", f"{max(lengths_s):.1f}"])
        stopped = table(["engine of", "stops", "silent in all (s)", "longest (s)"], rows)
        return f"{stopped}\n\nAnswers: {results_of(self.results)}; the slowest after {self.slowest_s:.1f} s."


class Stops:
    """Stops engines of a cluster while requests come at a steady rate."""

    def __init__(self, cluster: Cluster, references: Sequence[Reference], *, seed: int, rate_per_s: float) -> None:
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._rate_per_s = rate_per_s
        self._crowd = Crowd(url=cluster.url, model=cluster.stack.model, references=references, rng=self._rng)
        self._stopped: set[str] = set()
        self._found = Silences()

    async def run_random(self, stops: int, seconds: float) -> Silences:
        """Stop so many engines, chosen at random, each for a random time; no further ones after `seconds`."""
        left = iter(range(stops))

        async def stopper() -> None:
            for _ in left:
                victim = self._rng.choice([node for node in self._cluster.nodes if node.name not in self._stopped])
                await self._stop(victim, self._rng.uniform(*STOPPED_S))
                await asyncio.sleep(self._rng.uniform(*PAUSE_S))

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(STOPPERS):
                    group.create_task(stopper())

        return await self._under_load(asyncio.wait_for(all_of_them(), seconds))

    async def run_each(self, victim: Server, lengths_s: Sequence[float], between_s: float) -> Silences:
        """Stop one engine for each of these times."""

        async def one_after_the_other() -> None:
            for length_s in lengths_s:
                await self._stop(victim, length_s)
                await asyncio.sleep(between_s)

        return await self._under_load(one_after_the_other())

    async def _stop(self, victim: Server, length_s: float) -> None:
        pid = engine_of(victim)
        self._stopped.add(victim.name)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(length_s)
        finally:
            os.kill(pid, signal.SIGCONT)
            self._stopped.remove(victim.name)
        self._found.stops.append((victim.name, length_s))

    async def _under_load(self, stopping: Coroutine[Any, Any, None]) -> Silences:
        asking = asyncio.create_task(self._ask_on())
        try:
            with suppress(TimeoutError):
                await stopping
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await self._crowd.finish(ANSWERED_WITHIN_S)
        self._judge()
        return self._found

    async def _ask_on(self) -> None:
        while True:
            self._crowd.also_wait_for(asyncio.create_task(self._crowd.send(self._crowd.draw())))
            await asyncio.sleep(self._rng.expovariate(self._rate_per_s))

    def _judge(self) -> None:
        for member in self._crowd.members:
            verdict = member.verdict()
            self._found.slowest_s = max(self._found.slowest_s, member.exchange.took_s)
            if verdict.result is Result.EXACT:
                self._found.results[f"exact ({verdict.path})"] += 1
            else:
                self._found.results[str(verdict)] += 1
                self._found.problems.append(f"{verdict} after {member.exchange.took_s:.1f} s")
        for node in self._cluster.nodes:
            if findings := node.integrity()["findings"]:
                self._found.problems.append(f"{node.name}: {findings}")
