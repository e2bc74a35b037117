"""Datasets that need no file: random prompts, prompts with shared prefixes, conversations.

With `chat` prompts are messages of words, without it token ids; conversations are always text, since answers are. A key,
which is any text, always gives the same prompt and lengths. Words are short and common: most tokenizers have one token
for each with the space before it. Where they have not, `tokens_per_word` corrects the length.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from baton.loadtest.traffic.script import Ask, Prompt, Script

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
    """Both lengths of a request, each drawn evenly from length × (1 ± spread).

    They are the same for any seed, so that runs of different seeds may be compared.
    """

    input_tokens: int
    output_tokens: int
    spread: float = 0.0

    def draw(self, key: str) -> tuple[int, int]:
        rng = random.Random(f"{key}/lengths")
        return _draw(rng, self.input_tokens, self.spread), _draw(rng, self.output_tokens, self.spread)


def _draw(rng: random.Random, tokens: int, spread: float) -> int:
    return max(1, rng.randint(round(tokens * (1 - spread)), round(tokens * (1 + spread))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What all made-up datasets need."""

    seed: int
    chat: bool
    lengths: Lengths
    vocabulary: Vocabulary

    def user_message(self, text: str | tuple[int, ...]) -> Prompt:
        return [{"role": "user", "content": text}] if isinstance(text, str) else text


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """No two prompts share more than chance gives them."""

    making: Making

    def lengths(self, index: int) -> tuple[int, int]:
        """Return the tokens of a prompt and of its answer, without making the prompt."""
        return self.making.lengths.draw(f"random/{index}")

    def script(self, index: int) -> Script:
        key = f"{self.making.seed}/random/{index}"
        tokens, output = self.lengths(index)
        prompt = self.making.vocabulary.prompt(key, tokens, as_text=self.making.chat)
        yield Ask(prompt=self.making.user_message(prompt), input_tokens=tokens, output_tokens=output)


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Each prompt is one of a few prefixes, in turn, and a suffix of its own."""

    making: Making
    prefixes: int
    prefix_tokens: int

    def lengths(self, index: int) -> tuple[int, int]:
        """Return the tokens of a prompt and of its answer, without making the prompt."""
        suffix, output = self.making.lengths.draw(f"suffix/{index}")
        return self.prefix_tokens + suffix, output

    def script(self, index: int) -> Script:
        """Return one request; warming up uses other prefixes than the run."""
        making, number = self.making, index % self.prefixes if index >= 0 else index
        key = f"{making.seed}/suffix/{index}"
        total, output = self.lengths(index)
        prefix = making.vocabulary.prompt(f"{making.seed}/prefix/{number}", self.prefix_tokens, as_text=making.chat)
        suffix = making.vocabulary.prompt(key, total - self.prefix_tokens, as_text=making.chat)
        joined = f"{prefix} {suffix}" if making.chat else (*prefix, *suffix)
        yield Ask(prompt=making.user_message(joined), input_tokens=total, output_tokens=output)


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """Conversations: each turn repeats everything before it, the server's own answers included."""

    making: Making
    turns: int

    def script(self, index: int) -> Script:
        said: list[tuple[str, str]] = []  # role and text
        for turn in range(self.turns):
            key = f"{self.making.seed}/conversation/{index}/{turn}"
            tokens, output = self.making.lengths.draw(f"conversation/{index}/{turn}")
            said.append(("user", self.making.vocabulary.text(key, tokens)))
            answer = yield Ask(prompt=self._prompt(said), output_tokens=output, conversation=index, turn=turn)
            said.append(("assistant", answer))

    def _prompt(self, said: Sequence[tuple[str, str]]) -> Prompt:
        if self.making.chat:
            return [{"role": role, "content": text} for role, text in said]
        return "".join(f"User: {text}\nAssistant:" if role == "user" else f"{text}\n" for role, text in said)
