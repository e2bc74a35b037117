"""Datasets that need no file: random prompts, prompts with shared prefixes, conversations.

With `chat` prompts are messages of words; without it they are token ids, but for conversations, which are text in both
cases, since an answer comes back as text.
"""

from dataclasses import dataclass

from baton.loadtest.traffic.script import Ask, Prompt, Script, Single
from baton.loadtest.traffic.vocabulary import Lengths, Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What all three need."""

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
    turns: int = 1

    def script(self, index: int) -> Script:
        key = f"{self.making.seed}/random/{index}"
        tokens, output = self.making.lengths.draw(key)
        prompt = self.making.vocabulary.prompt(key, tokens, as_text=self.making.chat)
        return Single(Ask(prompt=self.making.user_message(prompt), input_tokens=tokens, output_tokens=output))


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Each prompt is one of a few prefixes, in turn, and a suffix of its own."""

    making: Making
    prefixes: int
    prefix_tokens: int
    turns: int = 1

    def script(self, index: int) -> Script:
        """Return one request; warming up uses other prefixes than the run."""
        making, number = self.making, index % self.prefixes if index >= 0 else index
        key = f"{making.seed}/suffix/{index}"
        tokens, output = making.lengths.draw(key)
        prefix = making.vocabulary.prompt(f"{making.seed}/prefix/{number}", self.prefix_tokens, as_text=making.chat)
        suffix = making.vocabulary.prompt(key, tokens, as_text=making.chat)
        joined = f"{prefix} {suffix}" if making.chat else (*prefix, *suffix)
        total = self.prefix_tokens + tokens
        return Single(Ask(prompt=making.user_message(joined), input_tokens=total, output_tokens=output))


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """Conversations: each turn repeats everything before it, the server's own answers included."""

    making: Making
    turns: int

    def script(self, index: int) -> Script:
        return Conversation(self.making, index, self.turns)


class Conversation:
    """One conversation on its way."""

    def __init__(self, making: Making, index: int, turns: int) -> None:
        self._making = making
        self._index = index
        self._turns = turns
        self._turn = 0
        self._said: list[tuple[str, str]] = []  # role and text

    def first(self) -> Ask:
        self._turn, self._said = 0, []
        return self._ask()

    def following(self, answer: str) -> Ask | None:
        self._turn += 1
        if self._turn == self._turns:
            return None
        self._said.append(("assistant", answer))
        return self._ask()

    def _ask(self) -> Ask:
        key = f"{self._making.seed}/conversation/{self._index}/{self._turn}"
        tokens, output = self._making.lengths.draw(key)
        self._said.append(("user", self._making.vocabulary.text(key, tokens)))
        return Ask(prompt=self._prompt(), output_tokens=output, conversation=self._index, turn=self._turn)

    def _prompt(self) -> Prompt:
        if self._making.chat:
            return [{"role": role, "content": text} for role, text in self._said]
        return "".join(f"User: {text}\nAssistant:" if role == "user" else f"{text}\n" for role, text in self._said)
