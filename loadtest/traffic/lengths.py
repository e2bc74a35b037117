"""How long prompts and answers are: a length, and by how much requests differ from it."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Both lengths of a request, each drawn evenly from length × (1 ± spread)."""

    input_tokens: int
    output_tokens: int
    spread: float = 0.0

    def draw(self, key: str) -> tuple[int, int]:
        """Return the lengths, in and out, that belong to a key; at least 1 each."""
        rng = random.Random(f"{key}/lengths")
        return _draw(rng, self.input_tokens, self.spread), _draw(rng, self.output_tokens, self.spread)


def _draw(rng: random.Random, tokens: int, spread: float) -> int:
    return max(1, rng.randint(round(tokens * (1 - spread)), round(tokens * (1 + spread))))
