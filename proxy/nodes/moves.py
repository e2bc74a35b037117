"""What became of the streams that a decode node was to give away, since it was last told so. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

# On another decode node with the KV from this one; with KV from elsewhere, or computed there; the KV could not be sent
# ahead, the stream is untouched.
Result = Literal["moved", "recomputed", "failed"]


@dataclass(slots=True)
class Moves:
    """The streams that one decode node was to give away."""

    results: Counter[str] = field(default_factory=Counter)
    staying: Counter[str] = field(default_factory=Counter)  # streams that are to leave and are still there, by why
