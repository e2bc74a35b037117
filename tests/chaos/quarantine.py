"""How many blocks were in quarantine, and for how long at a stretch, as pictures of the nodes show it. Pure."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Stretch:
    """The longest time for which something held without a break, on any node."""

    longest_s: float = 0.0
    _since: dict[str, float] = field(default_factory=dict)

    def note(self, node: str, holds: bool, now: float) -> None:
        """Take one look into account."""
        if not holds:
            self._since.pop(node, None)
            return
        self.longest_s = max(self.longest_s, now - self._since.setdefault(node, now))


class Quarantine:
    """What was seen since the last `forget`."""

    def __init__(self, max_share: float) -> None:
        """`max_share` of the pool is what `transfer.quarantine_max_share` allows."""
        self._max_share = max_share
        self.forget()

    def forget(self) -> None:
        self.most_blocks = 0
        self.any = Stretch()
        self.beyond = Stretch()  # more than the share that is allowed

    def note(self, node: str, blocks: int, num_blocks: int, now: float) -> None:
        """Take one node's picture into account."""
        self.most_blocks = max(self.most_blocks, blocks)
        self.any.note(node, blocks > 0, now)
        self.beyond.note(node, blocks > self._max_share * num_blocks, now)
