"""Nodes that send and receive: what one transfer brings to a node, another one takes away from there (decision 63).

Transfer A goes from P to D, transfer B from P1 to D1. D and P1 are two machines of one process, node B: they share its
pool and live and die together. Transfer B's prompt is that of transfer A and a block more. D1 is a third node's, to
which a stream moves; or node A's, like P, to which an answer returns.

The machines are explored apart, and the node's scheduler (`node.py`) apart from them; what a machine does to the
blocks that they share is an *effect* of its event, and an event that the scheduler does not allow does not happen.
"""

from dataclasses import dataclass

from tests.explorer.node import COMPUTED, OWN, RECEIVED
from tests.explorer.scope import NAMES, Scene, right

PEERS = {"P": "D", "D": "P", "P1": "D1", "D1": "P1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWays(Scene):
    transfers: int = 2
    crashes: str = ""  # the first place of the process that may die

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES

    @property
    def prefill(self) -> tuple[str, ...]:
        return ("P", "P1")

    @property
    def decode(self) -> tuple[str, ...]:
        return ("D", "D1")

    @property
    def nodes(self) -> tuple[str, ...]:
        return ("B",)

    @property
    def processes(self) -> tuple[tuple[str, ...], ...]:
        return (("P",), ("D", "P1", "B"), ("D1",))

    @property
    def blocks(self) -> range:
        return range(1, 1 + OWN)

    def may_crash(self, place: str) -> bool:
        return place == self.crashes

    def names_at(self, place: str) -> tuple[str, ...]:
        return NAMES[1:] if place.endswith("1") else NAMES[:1]

    def peers_of(self, place: str) -> tuple[str, ...]:
        return (PEERS[place],)

    def samples_at(self, place: str) -> bool:
        return self.samples and place in self.prefill

    def leads(self, place: str) -> tuple[int, ...]:
        return {"P1": (RECEIVED, COMPUTED, OWN), "D1": (OWN,)}.get(place, ())

    def right(self, name: str) -> list[str]:
        return [right(each) for each in NAMES[: 1 + NAMES.index(name)]]

    def flow(self, name: str, source: str, target: str) -> str:  # noqa: ARG002  # there is one
        return name

    def ends(self, flow: str) -> tuple[str, str]:
        return ("P1", "D1") if flow == NAMES[1] else ("P", "D")

    def node_of(self, place: str) -> str:
        return "B" if place in ("D", "P1") else ""
