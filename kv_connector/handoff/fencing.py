"""Which receiving engine serves which peer, and when one is destroyed.

Destroying an engine is the only thing that ends the writes of a dirty epoch (E3), and it takes from 50 ms to a second
with the GIL held. So an engine through which an epoch turned dirty is *retired*: its domain gets a fresh engine at
once, new reservations go there, and the old one is destroyed when its healthy epochs have ended or its time is up.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class FenceDomains:
    """The receiving engines of one decode rank, by name."""

    count: int
    current: dict[int, str] = field(default_factory=dict)  # domain → engine; missing while one is being made
    retired: dict[str, float] = field(default_factory=dict)  # engine → when, s
    fencing: set[str] = field(default_factory=set)  # engines whose destruction has been asked for
    _assigned: dict[str, int] = field(default_factory=dict)  # peer → domain

    def missing(self) -> list[int]:
        return [domain for domain in range(self.count) if domain not in self.current]

    def engine_for(self, peer: str) -> str | None:
        """The engine through which `peer` may write; `None` while its domain has none."""
        if peer not in self._assigned:
            load = Counter(self._assigned.values())
            self._assigned[peer] = min(range(self.count), key=lambda domain: load[domain])
        return self.current.get(self._assigned[peer])

    def forget(self, peer: str) -> None:
        """The peer is gone; its place goes to the next one."""
        self._assigned.pop(peer, None)

    def add(self, domain: int, engine: str) -> None:
        """A domain has a fresh engine.

        Its name must never have been used before, not even by an earlier process at this address: a sender that
        stopped between its check and its write would otherwise write through the new engine (E2).
        """
        assert domain not in self.current, "the engine in use is retired first"
        assert engine not in self.retired, "an engine's name is not used twice"
        self.current[domain] = engine

    def retire(self, engine: str, now: float) -> None:
        """Take an engine out of use; idempotent."""
        for domain, name in list(self.current.items()):
            if name == engine:
                del self.current[domain]
                self.retired[engine] = now

    def fenced(self, engine: str) -> None:
        """The engine has been destroyed, whether or not we asked for it."""
        self.current = {domain: name for domain, name in self.current.items() if name != engine}
        self.retired.pop(engine, None)
        self.fencing.discard(engine)
