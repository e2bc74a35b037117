"""A day in the life of some prefill nodes: a trace, a policy, caches that forget, and queues."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from baton.loadtest.traffic.trace_replay import BLOCK_TOKENS, TracedRequest
from baton.proxy.nodes.node import Node
from baton.proxy.routing.candidates import Candidates
from baton.proxy.routing.policies import Policy, Work
from baton.proxy.routing.prefixes import CHUNK_BYTES

BYTES_PER_TOKEN = CHUNK_BYTES // BLOCK_TOKENS


@dataclass(eq=False, kw_only=True)
class SimulatedNode(Node):
    """Computes one prompt after the other, and keeps the blocks that it used last."""

    tokens_per_s: float
    cache_blocks: int
    computed_tokens: int = 0
    cached_tokens: int = 0
    free_at_s: float = 0.0
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    in_flight: list[tuple[float, float]] = field(default_factory=list)  # end in s, bytes

    def catch_up(self, now_s: float) -> None:
        """Let go of the prompts that are done by now."""
        self.in_flight = [(end, size) for end, size in self.in_flight if end > now_s]
        self.load = sum(size for _, size in self.in_flight)

    def take(self, request: TracedRequest, now_s: float) -> float:
        """Compute a prompt; return how long it took, waiting included, s."""
        blocks = request.hash_ids[: request.input_length // BLOCK_TOKENS]
        hit = next((i for i, block in enumerate(blocks) if block not in self.cache), len(blocks)) * BLOCK_TOKENS
        for block in blocks:
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.cache_blocks:
            self.cache.popitem(last=False)
        work = request.input_length - hit
        self.computed_tokens += work
        self.cached_tokens += hit
        self.free_at_s = max(now_s, self.free_at_s) + work / self.tokens_per_s
        self.in_flight.append((self.free_at_s, request.input_length * BYTES_PER_TOKEN))
        return self.free_at_s - now_s


@dataclass(frozen=True)
class Result:
    """What became of a trace."""

    cached_share: float  # of all prompt tokens
    largest_share: float  # tokens that the busiest node computed, in units of the mean
    mean_wait_s: float


def simulate(
    policy: Policy, trace: Iterable[TracedRequest], *, nodes: int, tokens_per_s: float, cache_blocks: int
) -> Result:
    """Send a trace through a policy."""
    fleet = [
        SimulatedNode(
            url=f"http://node-{slot}",
            role="prefill",
            slot=slot,
            tokens_per_s=tokens_per_s,
            cache_blocks=cache_blocks,
        )
        for slot in range(nodes)
    ]
    candidates = Candidates(fleet)
    waits = []
    for turn, request in enumerate(trace):
        now_s = request.timestamp / 1e3
        for node in fleet:
            node.catch_up(now_s)
        blocks = request.hash_ids[: request.input_length // BLOCK_TOKENS]
        work = Work(request.input_length * BYTES_PER_TOKEN, turn, blocks, draw=(turn * 0.618) % 1.0, now_s=now_s)
        chosen = policy.choose(work, candidates)
        policy.given(work, chosen)
        waits.append(fleet[chosen.slot].take(request, now_s))
    computed = [node.computed_tokens for node in fleet]
    cached = sum(node.cached_tokens for node in fleet)
    return Result(
        cached_share=cached / (cached + sum(computed)),
        largest_share=max(computed) * nodes / sum(computed),
        mean_wait_s=sum(waits) / len(waits),
    )
