"""Several proxies in front of the same decode nodes, each with what it knows of the others' work, or without."""

import random
from dataclasses import dataclass

from contracts.node_info import NodeLoad
from proxy.node import Node
from proxy.routing.candidates import Candidates
from proxy.routing.policies import Policy, Work
from tests.unit.proxy.members import info

TICK_S = 0.01
POLL_S = 1.0


@dataclass(eq=False)
class Sequence:
    """One request, which needs so much of a node's time when it has the node for itself."""

    proxy: int
    left_s: float
    began_s: float


class Truth:
    """A node as it is: its sequences share its time, each beside the others a little faster than in turn."""

    def __init__(self, slots: int) -> None:
        self.slots = slots  # sequences that do not slow each other down
        self.sequences: list[Sequence] = []

    def tick(self) -> list[Sequence]:
        """Let a moment pass; return what has ended."""
        speed = min(1.0, self.slots / len(self.sequences)) if self.sequences else 1.0
        for sequence in self.sequences:
            sequence.left_s -= TICK_S * speed
        ended = [sequence for sequence in self.sequences if sequence.left_s <= 0]
        self.sequences = [sequence for sequence in self.sequences if sequence.left_s > 0]
        return ended


def mean_latency_s(
    make_policy: type[Policy],
    *,
    polled: bool,
    proxies: int = 2,
    nodes: int = 4,
    length_s: float,
    utilisation: float = 0.8,
    seconds: float = 200.0,
    seed: int = 1,
) -> float:
    """Send random requests through random proxies; return how long they took on average."""
    rng = random.Random(seed)
    slots = 8
    truths = [Truth(slots) for _ in range(nodes)]
    views = [[Node(url=f"http://n{slot}", role="decode", slot=slot) for slot in range(nodes)] for _ in range(proxies)]
    candidates = [Candidates(view) for view in views]
    policies = [make_policy() for _ in range(proxies)]
    phases = [rng.random() * POLL_S for _ in range(proxies)]
    chance = utilisation * nodes * slots / length_s * TICK_S
    latencies: list[float] = []
    for step in range(int(seconds / TICK_S)):
        now_s = step * TICK_S
        for slot, truth in enumerate(truths):
            for ended in truth.tick():
                latencies.append(now_s - ended.began_s)
                views[ended.proxy][slot].requests -= 1
        for proxy, view in enumerate(views):
            if polled and now_s >= phases[proxy]:
                phases[proxy] += POLL_S
                for slot, node in enumerate(view):
                    node.describe(info("decode", load=NodeLoad(requests=len(truths[slot].sequences), prompt_bytes=0)))
        arrivals = int(chance) + (rng.random() < chance % 1)
        for _ in range(arrivals):
            proxy = rng.randrange(proxies)
            work = Work(0, turn=step, draw=rng.random(), now_s=now_s)
            node = policies[proxy].choose(work, candidates[proxy])
            node.requests += 1
            truths[node.slot].sequences.append(Sequence(proxy, rng.expovariate(1 / length_s), now_s))
    return sum(latencies) / len(latencies)
