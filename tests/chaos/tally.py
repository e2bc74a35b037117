"""What a storm has seen: who left when, what the others got, how long blocks stayed away."""

from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.phases import Phase
from tests.chaos.verdict import Result


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a storm has seen."""

    left: Counter[Phase] = field(default_factory=Counter)
    results: Counter[Result] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    given_back_s: dict[Phase, list[float]] = field(default_factory=dict)  # after each departure
    settled_s: list[float] = field(default_factory=list)  # after each wave's last client: the slowest node
    slowest_answer_s: float = 0.0
    took_s: float = 0.0
    waves: int = 0  # after each, every node has compared its books
    orders: Counter[str] = field(default_factory=Counter)  # what was ordered, and what came of it
    verified: int = 0  # transfers whose KV was compared, byte for byte, and was equal

    @property
    def aborts(self) -> int:
        """Clients that left in a known phase."""
        return sum(self.left.values())
