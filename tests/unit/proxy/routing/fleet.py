"""Nodes as a policy sees them."""

from collections.abc import Sequence

from baton.proxy.nodes.node import Node
from baton.proxy.routing.candidates import Candidates


def idle(slot: int, load: float = 0.0) -> Node:
    return Node(url=f"http://node-{slot}", role="prefill", slot=slot, load=load)


def fleet(loads: Sequence[float]) -> Candidates:
    return Candidates([idle(slot, load) for slot, load in enumerate(loads)])
