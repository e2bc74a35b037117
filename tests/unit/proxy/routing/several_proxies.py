"""Several proxies in front of the same decode nodes, each with what it knows of the others' work, or without."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from baton.contracts.node_info import NodeLoad
from baton.proxy.nodes.node import Node
from baton.proxy.routing.candidates import Candidates
from baton.proxy.routing.policies import Policy, Work
from tests.unit.proxy.members import info

TICK_S = 0.01
POLL_S = 1.0
SLOTS = 8  # sequences on a node that do not slow each other down


@dataclass(eq=False)
class Sequence:
    """One request."""

    end: Callable[[], None]  # tells its proxy
    left_s: float  # of a node's time, if it had a slot of its own
    began_s: float


class Truth:
    """A node as it is."""

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []

    def tick(self) -> list[Sequence]:
        """Let a moment pass; return what has ended."""
        speed = min(1.0, SLOTS / max(1, len(self.sequences)))
        for sequence in self.sequences:
            sequence.left_s -= TICK_S * speed
        ended = [sequence for sequence in self.sequences if sequence.left_s <= 0]
        self.sequences = [sequence for sequence in self.sequences if sequence.left_s > 0]
        return ended


class Proxy:
    """One proxy: its policy, and the nodes as it sees them."""

    def __init__(self, policy: Policy, nodes: int, next_poll_s: float) -> None:
        self.next_poll_s = next_poll_s
        self._policy = policy
        self.view = [Node(url=f"http://n{slot}", role="decode", slot=slot) for slot in range(nodes)]
        self._candidates = Candidates(self.view)
        self._turn = 0

    def poll(self, truths: list[Truth]) -> None:
        """Hear from every node how much it has."""
        self.next_poll_s += POLL_S
        for node, truth in zip(self.view, truths, strict=True):
            node.describe(info("decode", load=NodeLoad(requests=len(truth.sequences), prompt_bytes=0)))

    def begin(self, draw: float, now_s: float) -> tuple[Node, Callable[[], None]]:
        """Give a request to a node; also return what ends it."""
        self._turn += 1
        node = self._policy.choose(Work(0, self._turn, draw=draw, now_s=now_s), self._candidates)
        return node, node.begin(0)


@dataclass(frozen=True)
class Result:
    """What became of it."""

    mean_latency: float  # in units of a request's length
    imbalance: float  # sequences that the busiest node has more than the idlest, on average


def simulate(
    policy: Callable[[], Policy],
    *,
    polled: bool,
    proxies: int,
    length_s: float,
    nodes: int = 4,
    utilisation: float = 0.85,
    seconds: float = 120.0,
    seed: int = 1,
) -> Result:
    """Send random requests through random proxies."""
    rng = random.Random(seed)
    truths = [Truth() for _ in range(nodes)]
    fleet = [Proxy(policy(), nodes, rng.random() * POLL_S) for _ in range(proxies)]
    rate = utilisation * nodes * SLOTS / length_s * TICK_S
    latencies_s: list[float] = []
    spreads: list[int] = []
    for step in range(int(seconds / TICK_S)):
        now_s = step * TICK_S
        for truth in truths:
            for ended in truth.tick():
                latencies_s.append(now_s - ended.began_s)
                ended.end()
        for proxy in fleet:
            if polled and now_s >= proxy.next_poll_s:
                proxy.poll(truths)
        for _ in range(int(rate) + (rng.random() < rate % 1)):
            proxy = rng.choice(fleet)
            node, end = proxy.begin(rng.random(), now_s)
            truths[node.slot].sequences.append(Sequence(end, rng.expovariate(1 / length_s), now_s))
        sizes = [len(truth.sequences) for truth in truths]
        spreads.append(max(sizes) - min(sizes))
    return Result(mean_latency=sum(latencies_s) / len(latencies_s) / length_s, imbalance=sum(spreads) / len(spreads))
