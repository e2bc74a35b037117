"""The nodes among which a policy chooses, put in order once per change of the members rather than once per request."""

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class Candidate(Protocol):
    """What a policy knows of a node."""

    @property
    def slot(self) -> int:
        """A small number of its own, for as long as it is a member."""
        ...

    @property
    def url(self) -> str:
        """Its name."""
        ...

    @property
    def load(self) -> float:
        """Work that it has now, in bytes of prompt."""
        ...


C = TypeVar("C", bound=Candidate)


class Candidates(Generic[C]):
    """At least one node; immutable, while the nodes' loads change."""

    __slots__ = ("__weakref__", "by_slot", "nodes", "slots")

    def __init__(self, nodes: Iterable[C]) -> None:
        self.nodes = tuple(nodes)
        self.by_slot = {node.slot: node for node in self.nodes}
        self.slots = sum(1 << slot for slot in self.by_slot)  # bit set

    def window(self, turn: int, size: int) -> tuple[C, ...]:
        """Return `size` nodes, or all if there are fewer; the next ones at each turn."""
        start = turn * size % len(self.nodes)
        return self.nodes[start : start + size] if len(self.nodes) > size else self.nodes
