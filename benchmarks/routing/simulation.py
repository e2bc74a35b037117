"""The event loop: arrivals at proxies, ends on servers, probes of each node by each proxy.

A proxy counts its own requests at once. Of others' it knows what a node's last probes said, through `Node.describe` and
`ExternalLoad`, as in the product. Messages take no time.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final

import msgspec

from baton.loadtest.mock_engine.dialects import describe
from baton.proxy.nodes.node import Node
from baton.proxy.routing.policies import Policy, Work
from baton.proxy.routing.router import Router
from benchmarks.routing.servers import Served, Server
from benchmarks.routing.workload import Request

_INFO: Final = describe("prefill", 1)


class Proxy:
    """A proxy's own router, and its own view of every server."""

    def __init__(self, policy: Policy, servers: Sequence[Server]) -> None:
        self.router = Router(policy)
        self.nodes = tuple(Node(url=f"http://node-{one.slot}", role="prefill", slot=one.slot) for one in servers)


class Simulation:
    """Runs once."""

    def __init__(self, proxies: Sequence[Proxy], servers: Sequence[Server], seed: int) -> None:
        self._proxies = proxies
        self._servers = servers
        self._rng = random.Random(seed)
        self._ends: list[tuple[float, int, Served, Callable[..., None]]] = []  # heap
        self.work_left_s: list[list[float]] = []  # of each server, once per interval of the probes

    def run(self, requests: Iterable[Request], probe_interval_s: float) -> list[Served]:
        """Send each request to a proxy drawn at random, and return what became of all, in their order."""
        found = []
        probes = self._due_probes(probe_interval_s)
        due_s, node = next(probes)
        for number, request in enumerate(requests):
            while due_s <= request.at_s:
                self._end_until(due_s)
                node.describe(msgspec.structs.replace(_INFO, load=self._servers[node.slot].load))
                due_s, node = next(probes)
            self._end_until(request.at_s)
            proxy = self._rng.choice(self._proxies)
            read = request.prefixes if proxy.router.reads_prompts else ()
            work = Work(request.prompt_bytes, 0, read, str(number), self._rng.random(), request.at_s)
            chosen = proxy.router.choose(work, proxy.nodes)
            served = self._servers[chosen.slot].submit(request)
            heappush(self._ends, (served.end_s, number, served, chosen.begin(request.prompt_bytes)))
            found.append(served)
        return found

    def _due_probes(self, interval_s: float) -> Iterator[tuple[float, Node]]:
        """Yield when a proxy probes a node; each pair has its own phase."""
        phases = [(self._rng.random() * interval_s, node) for proxy in self._proxies for node in proxy.nodes]
        phases.sort(key=lambda one: one[0])
        began_s = 0.0
        while True:
            for phase_s, node in phases:
                yield began_s + phase_s, node
            began_s += interval_s
            self.work_left_s.append([max(0.0, one.free_at_s - began_s) for one in self._servers])

    def _end_until(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            _, _, served, end = heappop(self._ends)
            self._servers[served.slot].end(served.request)
            end()
