"""Made-up prompts: how long they are, and their token ids or words. A key, which is any text, always gives the same ones.

Words are short and common, so that most tokenizers have one token for each with the space before it. How many tokens they
really are, only the server knows; `tokens_per_word` corrects the length for tokenizers with small vocabularies.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power "
    "hour game line end member law car city community name president team minute idea body information back parent face "
    "level office door health person art war history party result change morning reason research girl guy moment air "
    "teacher force education foot boy age policy music market sense nation plan college interest death experience effect "
    "use class control field development role effort rate heart drug show leader light voice wife police mind price"
)
WORDS: Final = _TEXT.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What prompts are made of."""

    low: int = 10  # the first token id in use, and
    high: int = 1000  # the one behind the last: most tokenizers keep special tokens outside
    tokens_per_word: float = 1.0

    def ids(self, key: str, tokens: int) -> tuple[int, ...]:
        return _ids(key, tokens, self.low, self.high)

    def text(self, key: str, tokens: int) -> str:
        """Return words that are about so many tokens; at least one."""
        words = max(1, round(tokens / self.tokens_per_word))
        return " ".join(random.Random(key).choices(WORDS, k=words))

    def prompt(self, key: str, tokens: int, *, as_text: bool) -> tuple[int, ...] | str:
        return self.text(key, tokens) if as_text else self.ids(key, tokens)


@lru_cache(maxsize=1024)  # blocks of a trace come again and again
def _ids(key: str, tokens: int, low: int, high: int) -> tuple[int, ...]:
    drawn = memoryview(random.Random(key).randbytes(4 * tokens)).cast("I")
    span = high - low
    return tuple([low + number % span for number in drawn])


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
