"""A simulated prefill server: one prompt after the other, and the blocks that were used last. Pure."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from baton.contracts.node_info import NodeLoad
from baton.loadtest.traffic.trace_replay import BLOCK_TOKENS
from benchmarks.routing.workload import Request


class BlockCache:
    """Prefix cache of whole blocks. Of one prompt the last blocks are evicted first, as by vLLM."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def count_cached(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks it has."""
        return next((depth for depth, block in enumerate(blocks) if block not in self._blocks), len(blocks))

    def use(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


class Served(NamedTuple):
    """What became of one request."""

    request: Request
    slot: int
    wait_s: float  # from its arrival to its start
    end_s: float


class Server:
    """First come, first served: so what is cached when a prompt starts is known when it arrives."""

    def __init__(self, slot: int, tokens_per_s: float, cache_blocks: int = 0) -> None:
        self.slot = slot
        self.cache = BlockCache(cache_blocks)
        self.load = NodeLoad(requests=0, prompt_bytes=0)  # what it says when it is probed
        self.computed_tokens = 0
        self.free_at_s = 0.0
        self._tokens_per_s = tokens_per_s

    def submit(self, request: Request) -> Served:
        cached_tokens = BLOCK_TOKENS * self.cache.count_cached(request.blocks)
        self.cache.use(request.blocks)
        start_s = max(request.at_s, self.free_at_s)
        self.free_at_s = start_s + (request.tokens - cached_tokens) / self._tokens_per_s
        self.computed_tokens += request.tokens - cached_tokens
        self._count(1, request.prompt_bytes)
        return Served(request, self.slot, start_s - request.at_s, self.free_at_s)

    def end(self, request: Request) -> None:
        self._count(-1, -request.prompt_bytes)

    def _count(self, requests: int, prompt_bytes: int) -> None:
        self.load = NodeLoad(requests=self.load.requests + requests, prompt_bytes=self.load.prompt_bytes + prompt_bytes)
