"""The nodes among which a policy chooses, put in order once per change of the members rather than once per request."""

from collections.abc import Iterable

from baton.proxy.nodes.node import Node


class Candidates:
    """At least one node; immutable, while the nodes' loads change."""

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
