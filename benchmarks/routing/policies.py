"""What Baton's policies are compared with: those that see what no proxy can, and one that looks at nothing."""

from collections.abc import Callable, Sequence

from baton.proxy.nodes.node import Node
from baton.proxy.routing.candidates import Candidates
from baton.proxy.routing.policies import Policy, RoundRobin, Work
from benchmarks.routing.servers import Server
from benchmarks.routing.workload import Request


class Stateless(RoundRobin):
    """A policy that is one function; like its base, it remembers nothing."""

    def __init__(self, choose: Callable[[Work, Candidates], Node]) -> None:
        self._choose = choose

    def choose(self, work: Work, candidates: Candidates) -> Node:
        return self._choose(work, candidates)


def follow_longest_prefix(servers: Sequence[Server], requests: Sequence[Request]) -> Policy:
    """Take the node whose real cache has most of the prompt; of several the one with the least load.

    What all prompts begin with (a system prompt) does not count: it would send all of them to the node that had it first.
    `Work.key` is the place of the request in `requests`.
    """
    common = sum(len(set(blocks)) == 1 for blocks in zip(*(one.blocks for one in requests if one.blocks), strict=False))

    def choose(work: Work, candidates: Candidates) -> Node:
        blocks = requests[int(work.key)].blocks

        def rank(node: Node) -> tuple[int, float, int]:
            server = servers[node.slot]
            return -max(common, server.cache.count_cached(blocks)), node.load, server.computed_tokens

        return min(candidates.nodes, key=rank)

    return Stateless(choose)


def follow_work_left(servers: Sequence[Server]) -> Policy:
    """Take the node that will be idle first, as only one proxy in front of everything could know it."""
    return Stateless(lambda _, candidates: min(candidates.nodes, key=lambda node: servers[node.slot].free_at_s))


def draw_node() -> Policy:
    """Take any node."""
    return Stateless(lambda work, candidates: candidates.nodes[int(work.draw * len(candidates.nodes))])
