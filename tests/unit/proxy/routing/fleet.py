"""Nodes as a policy sees them."""

from collections.abc import Sequence
from dataclasses import dataclass

from baton.proxy.routing.candidates import Candidates


@dataclass(eq=False)
class Fake:
    """A node with nothing but a load."""

    slot: int
    load: float = 0.0

    @property
    def url(self) -> str:
        """Its name."""
        return f"http://node-{self.slot}"


def fleet(loads: Sequence[float]) -> Candidates[Fake]:
    """Make a node of each load."""
    return Candidates([Fake(slot, load) for slot, load in enumerate(loads)])
