"""Which node gets a request: the proxy's default policies, on what the simulation knows.

P by prefix affinity: the least of prompt tokens in flight and of this prompt's tokens that are new to the node. D by least
load: bytes of prompt in flight and 16 KiB for each sequence (`proxy/nodes/node.py`).
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from baton.loadtest.plan.demand import Demand

SEQUENCE_TOKENS: Final = 4096  # 16 KiB of prompt, at 4 bytes a token
DEEPEST: Final = 8  # nodes that have seen most of the prompt and are looked at


class Loads:
    """Nodes by load; of equal ones, the one that got least so far."""

    def __init__(self, nodes: int) -> None:
        self.load = [0] * nodes
        self._given = [0] * nodes
        self._heap = [(0, 0, node) for node in range(nodes)]  # entries that are out of date are passed over
        heapify(self._heap)

    def least(self) -> int:
        while True:
            load, given, node = self._heap[0]
            if load == self.load[node] and given == self._given[node]:
                return node
            heappop(self._heap)

    def change(self, node: int, amount: int) -> None:
        self._given[node] += max(amount, 0)
        self.load[node] += amount
        heappush(self._heap, (self.load[node], self._given[node], node))


class DecodeChoice:
    """Least load."""

    def __init__(self, nodes: int) -> None:
        self._loads = Loads(nodes)

    def choose(self, demand: Demand) -> int:
        node = self._loads.least()
        self._loads.change(node, demand.input_tokens + SEQUENCE_TOKENS)
        return node

    def done(self, node: int, demand: Demand) -> None:
        self._loads.change(node, -demand.input_tokens - SEQUENCE_TOKENS)


class PrefillChoice:
    """Prefix affinity."""

    def __init__(self, nodes: int) -> None:
        self._loads = Loads(nodes)
        self._seen: dict[str, dict[int, None]] = {}  # block → nodes that were given it

    def choose(self, demand: Demand) -> int:
        least = self._loads.least()
        best, rank = least, self._loads.load[least] + demand.input_tokens
        for node, blocks in self._deepest(demand.blocks).items():
            load = self._loads.load[node] + demand.input_tokens - blocks * demand.block_tokens
            if load < rank:
                best, rank = node, load
        for block in demand.blocks:
            self._seen.setdefault(block, {})[best] = None
        self._loads.change(best, demand.input_tokens)
        return best

    def done(self, node: int, demand: Demand) -> None:
        self._loads.change(node, -demand.input_tokens)

    def _deepest(self, blocks: Sequence[str]) -> Counter[int]:
        """Return the nodes that have seen most leading blocks, and how many."""
        found: Counter[int] = Counter()
        known = 0
        while known < len(blocks) and blocks[known] in self._seen:
            known += 1
        for depth in range(known, 0, -1):
            for node in reversed(self._seen[blocks[depth - 1]]):  # the latest: its cache still has it
                if len(found) == DEEPEST:
                    return found
                found.setdefault(node, depth)
        return found
