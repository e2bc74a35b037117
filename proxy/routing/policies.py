"""Small policies that choose one of the nodes that may take a request; they only rank. Pure.

A policy is asked with what is known of the request (`Work`) and of the nodes (`Candidates`), and told which node got
the work in the end, since that may be another one. 50 µs is what a choice among 1,000 nodes may cost.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from baton.proxy.nodes.node import Node
from baton.proxy.routing.fair_share import FairShare
from baton.proxy.routing.prefix_index import PrefixIndex, each
from baton.proxy.routing.prefixes import CHUNK_BYTES, NO_STEPS, STEP_BYTES, Prefixes, Steps

_load: Final = attrgetter("load")


class Work(NamedTuple):
    """What a policy knows of the request."""

    prompt_bytes: int
    turn: int  # counts choices; rotates ties, so that idle nodes take turns
    prefixes: Prefixes = ()
    key: str = ""  # what `ConsistentHash` keeps together; empty: the request has none
    draw: float = 0.0  # random, in [0, 1)
    now_s: float = 0.0  # monotonic
    steps: Steps = NO_STEPS  # of the same prompt


class Candidates:
    """At least one node; immutable, while the nodes' loads change. Put in order once per change of the members."""

    __slots__ = ("__weakref__", "_twice", "by_slot", "nodes", "slots")

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(nodes)
        self._twice = self.nodes * 2
        self.by_slot = {node.slot: node for node in self.nodes}
        self.slots = sum(1 << slot for slot in self.by_slot)  # bit set

    def window(self, turn: int, size: int) -> tuple[Node, ...]:
        """Return `size` nodes, or all if there are fewer; the next ones at each turn, around the end."""
        start = turn * size % len(self.nodes)
        return self._twice[start : start + size] if len(self.nodes) > size else self.nodes


class Policy(Protocol):
    """Chooses a node. By default nothing follows from what it was told before."""

    reads_prompts: bool = False  # whether it looks at `Work.prefixes`

    def choose(self, work: Work, candidates: Candidates) -> Node:
        """Return the candidate that shall get the work."""
        ...

    def seen_bytes(self, _work: Work, _node: Node, /) -> int:
        """How much of the prompt a node is believed to have, before it gets the work."""
        return 0

    def given(self, _work: Work, _node: Node, _new_bytes: int, /) -> None:
        """A node has got the work, of which so much was new to it."""
        return

    def forget(self, _slot: int, /) -> None:
        """A node has restarted, or has left: its cache is empty."""
        return


class LeastLoad(Policy):
    """The node with the least work; of several, each in its turn.

    Of more than `_WINDOW` nodes it compares that many, other ones at each call.
    """

    _WINDOW: Final = 256

    def choose(self, work: Work, candidates: Candidates) -> Node:
        nodes = candidates.window(work.turn, self._WINDOW)
        start = work.turn % len(nodes)
        nodes = nodes[start:] + nodes[:start]
        loads = [node.load for node in nodes]  # half the time of `min` with a key
        return nodes[loads.index(min(loads))]


class PowerOfTwo(Policy):
    """The better one of two drawn nodes: several proxies that know little of each other do not all choose the same."""

    def choose(self, work: Work, candidates: Candidates) -> Node:
        nodes = candidates.nodes
        others = len(nodes) - 1
        if not others:
            return nodes[0]
        first, second = divmod(int(work.draw * len(nodes) * others), others)
        return min(nodes[first], nodes[(first + 1 + second) % len(nodes)], key=_load)


class RoundRobin(Policy):
    """One after the other, whatever their load."""

    def choose(self, work: Work, candidates: Candidates) -> Node:
        return candidates.nodes[work.turn % len(candidates.nodes)]


class ConsistentHash(Policy):
    """The same node for the same key, on a ring: a node that leaves moves only its own keys.

    A request without a key goes to the least loaded node.
    """

    _POINTS: Final = 64  # of each node on the ring

    def __init__(self) -> None:
        self._rings: WeakKeyDictionary[Candidates, list[tuple[int, int]]] = WeakKeyDictionary()
        self._otherwise = LeastLoad()

    def choose(self, work: Work, candidates: Candidates) -> Node:
        if not work.key:
            return self._otherwise.choose(work, candidates)
        ring = self._rings.get(candidates)
        if ring is None:
            urls = enumerate(node.url for node in candidates.nodes)
            ring = sorted((_point(f"{url} {i}"), index) for index, url in urls for i in range(self._POINTS))
            self._rings[candidates] = ring
        place = bisect_left(ring, (_point(work.key), 0)) % len(ring)
        return candidates.nodes[ring[place][1]]


class _Indexed:
    """Keeps what its nodes were given in an index, so that it is known how much of a prompt is new to them."""

    reads_prompts = True

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index

    def seen_bytes(self, work: Work, node: Node) -> int:
        """Whole chunks that it was given before, and steps of the next one."""
        depth = self._index.count_seen(work.prefixes, node.slot)
        more = self._index.count_seen(work.steps(depth), node.slot)
        return CHUNK_BYTES * depth + STEP_BYTES * more

    def given(self, work: Work, node: Node, _new_bytes: int) -> None:
        self._index.add(work.prefixes, node.slot)
        self._index.add(work.steps(len(work.prefixes)), node.slot)

    def forget(self, slot: int) -> None:
        self._index.forget(slot)


class PrefixAffinity(_Indexed):
    """The node with the least of what it has to do already, and `_NEW_COUNTS` times what it must compute of this prompt.

    What all nodes have seen makes no difference between them, and a node that has seen much but has much to do loses to
    one that has less to do: both follow from adding the two up. With a factor of 1 this would be the node that ends
    soonest; but a prompt that is computed twice for that is work that later prompts wait for, hence the larger factor.
    While all nodes are idle, a node that has seen much would get every prompt; so no node is given much more than
    `_TIMES` its share of the work of the last minutes.
    """

    _NEW_COUNTS: Final = 8
    _TIMES: Final = 1.25
    _SLACK_BYTES: Final = 1 << 19  # so that a conversation may stay where it is while no others come
    _DEEPEST: Final = 8  # nodes looked at that have seen most of the prompt
    _WINDOW: Final = 16  # further nodes looked at, others each time

    def __init__(self, index: PrefixIndex | None = None) -> None:
        super().__init__(PrefixIndex() if index is None else index)
        self._shares = FairShare()

    def choose(self, work: Work, candidates: Candidates) -> Node:
        unit, given = self._shares.unit(work.now_s), self._shares.given
        nodes = len(candidates.nodes)
        allowed = self._shares.limit(
            work.prompt_bytes, work.now_s, times=self._TIMES, nodes=nodes, slack=self._SLACK_BYTES
        )
        window = candidates.window(work.turn, self._WINDOW)
        best, least = None, (inf, inf)
        for slot, depth in self._seen(work.prefixes, candidates, window).items():
            node, new = candidates.by_slot[slot], work.prompt_bytes - CHUNK_BYTES * depth
            rank = node.load + self._NEW_COUNTS * new, given(slot)
            if rank < least and given(slot) + new * unit <= allowed:
                best, least = node, rank
        return best or min(window, key=lambda node: given(node.slot))

    def given(self, work: Work, node: Node, new_bytes: int) -> None:
        self._shares.add(node.slot, new_bytes, work.now_s)
        super().given(work, node, new_bytes)

    def forget(self, slot: int) -> None:
        super().forget(slot)
        self._shares.forget(slot)

    def _seen(self, prefixes: Prefixes, candidates: Candidates, window: Iterable[Node]) -> dict[int, int]:
        """How many leading prefixes have been seen by the nodes that are looked at, by slot."""
        seen = {node.slot: 0 for node in window}
        bits = sum(1 << slot for slot in seen)
        seen.update(each(self._index.matches(prefixes, bits)))
        if len(seen) < len(candidates.nodes):
            seen.update(islice(each(self._index.matches(prefixes, candidates.slots & ~bits)), self._DEEPEST))
        return seen


class Remembering(_Indexed):
    """Chooses as another policy does, and remembers prompts in the index."""

    def __init__(self, policy: Policy, index: PrefixIndex) -> None:
        super().__init__(index)
        self.choose = policy.choose


_FORGETFUL: Final[Mapping[str, Callable[[], Policy]]] = {
    "least_load": LeastLoad,
    "power_of_two": PowerOfTwo,
    "round_robin": RoundRobin,
    "consistent_hash": ConsistentHash,
}


def policy_of(name: str, index: PrefixIndex, *, remembers: bool = False) -> Policy:
    """Make the policy that a setting names; `remembers`: what is new to a node is to be known with any policy.

    `index` has what nodes have been given, of all roles: their slots differ.
    """
    if (make := _FORGETFUL.get(name)) is None:
        return PrefixAffinity(index)
    return Remembering(make(), index) if remembers else make()


def _point(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
