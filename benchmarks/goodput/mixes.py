"""What is asked and when: mixes of requests, at a load that counts in seconds of work per second. Pure and seeded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from baton.loadtest.traffic.arrivals import arrivals
from baton.loadtest.traffic.made_up import Lengths, Vocabulary
from baton.loadtest.traffic.script import Ask, Script

_PROMPTS: Final = Vocabulary()


class Kind(NamedTuple):
    """One kind of conversation. Each turn repeats what was said before and adds a prompt of these lengths."""

    name: str
    lengths: Lengths
    turns: int = 1

    def asks(self, seed: int, index: int) -> list[Ask]:
        """Draw a conversation; what stands for answers in its prompts is drawn too, so that every setup gets the same ones."""
        found: list[Ask] = []
        said: tuple[int, ...] = ()
        for turn in range(self.turns):
            key = f"{seed}/{self.name}/{index}/{turn}"
            tokens, output = self.lengths.draw(key)
            said += _PROMPTS.ids(key, tokens)
            found.append(Ask(prompt=said, input_tokens=len(said), output_tokens=output, conversation=index, turn=turn))
            said += _PROMPTS.ids(f"{key}/answer", output)
        return found


CHAT: Final = Kind("chat", Lengths(input_tokens=175, output_tokens=60, spread=0.7))
DOCUMENTS: Final = Kind("documents", Lengths(input_tokens=2250, output_tokens=8, spread=1 / 3))
PROMPTS: Final = Kind("prompts", Lengths(input_tokens=1100, output_tokens=8, spread=1 / 3))
ANSWERS: Final = Kind("answers", Lengths(input_tokens=64, output_tokens=300, spread=0.5))
AGENTIC: Final = Kind("agentic", Lengths(input_tokens=300, output_tokens=12, spread=0.5), turns=6)


class Part(NamedTuple):
    """One kind of a mix, all the time or in turns."""

    kind: Kind
    share: float = 1.0  # of the load, while it is on
    on_s: float = 1.0
    every_s: float = 1.0
    first_s: float = 0.0

    def is_on(self, at_s: float) -> bool:
        return (at_s - self.first_s) % self.every_s < self.on_s


def mixes(shift_s: float) -> dict[str, Sequence[Part]]:
    """Return all mixes by name.

    Bursts of documents alone are half as much again as the load that is asked for. The conversations of `chat_agentic`
    are 0.65 of it, so that about as many requests come in either turn. The answers of `alternating` are 1.7 times as
    much: a node that makes tokens for many streams at once can do more than the eight streams by which work is counted.
    """

    def in_turns(one: Kind, other: Kind, share: float = 1.0) -> list[Part]:
        every_s = 2 * shift_s
        return [
            Part(one, 1.0, on_s=shift_s, every_s=every_s),
            Part(other, share, on_s=shift_s, every_s=every_s, first_s=shift_s),
        ]

    return {
        "chat": [Part(CHAT)],
        "documents": [Part(DOCUMENTS)],
        "agentic": [Part(AGENTIC)],
        "bursty": [Part(CHAT, 0.5), Part(DOCUMENTS, 1.5, on_s=10, every_s=30, first_s=10)],
        "shifting": in_turns(CHAT, DOCUMENTS),
        "chat_agentic": in_turns(CHAT, AGENTIC, 0.65),
        "alternating": in_turns(PROMPTS, ANSWERS, 1.7),
    }


@dataclass(frozen=True, slots=True)
class Traffic:
    """A `Source` that is known in advance: the conversations of a run in the order in which they are due."""

    due_s: Sequence[float]
    asks: Sequence[Sequence[Ask]]

    @property
    def requests(self) -> int:
        return sum(map(len, self.asks))

    def script(self, index: int) -> Script:
        for ask in self.asks[index]:  # noqa: UP028  # a sequence cannot be sent the answer, as `yield from` would
            yield ask


def plan_traffic(
    parts: Sequence[Part], cost_s: Callable[[Kind], float], *, load: float, seconds: float, seed: int
) -> Traffic:
    """Plan a run; `load`: seconds of work per second, `seconds`: in which conversations begin, as a Poisson process."""
    begun: list[tuple[float, list[Ask]]] = []
    for number, part in enumerate(parts):
        rate_per_s = part.share * load / cost_s(part.kind) / part.kind.turns
        count = round(rate_per_s * seconds)
        due_s = arrivals(count, count / seconds, seed=seed * len(parts) + number)
        begun += [(at_s, part.kind.asks(seed, index)) for index, at_s in enumerate(due_s) if part.is_on(at_s)]
    begun.sort(key=lambda each: each[0])
    return Traffic([at_s for at_s, _ in begun], [asks for _, asks in begun])
