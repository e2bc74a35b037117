"""What is asked and when: mixes of requests, at a load that counts in seconds of work per second. Pure and seeded."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from baton.loadtest.traffic.arrivals import arrivals
from baton.loadtest.traffic.made_up import Lengths, Vocabulary
from baton.loadtest.traffic.script import Ask, Script

BURST_S: Final = 10.0
BURST_EVERY_S: Final = 30.0
_PROMPTS: Final = Vocabulary()


class Kind(NamedTuple):
    """One kind of conversation. Each turn repeats what was said before and adds a prompt of these lengths."""

    name: str
    lengths: Lengths
    turns: int = 1

    def cost_s(self, prefill_s: Callable[[float], float], token_s: float) -> float:
        """Return the work of one request on a server whose prefix cache has all earlier turns."""
        lengths = self.lengths
        new_tokens = lengths.input_tokens + (lengths.output_tokens if self.turns > 1 else 0)
        return prefill_s(new_tokens) + token_s * lengths.output_tokens


CHAT: Final = Kind("chat", Lengths(input_tokens=175, output_tokens=60, spread=0.7))
DOCUMENTS: Final = Kind("documents", Lengths(input_tokens=2250, output_tokens=8, spread=1 / 3))
AGENTIC: Final = Kind("agentic", Lengths(input_tokens=300, output_tokens=12, spread=0.5), turns=6)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The conversations of one kind: a `Source`. Prompts are token ids, and what stands for an answer in them is drawn too.

    So every setup gets the same prompts, whatever it answers.
    """

    kind: Kind
    seed: int

    @property
    def turns(self) -> int:
        return self.kind.turns

    def script(self, index: int) -> Script:
        said: tuple[int, ...] = ()
        for turn in range(self.kind.turns):
            key = f"{self.seed}/{self.kind.name}/{index}/{turn}"
            tokens, output = self.kind.lengths.draw(key)
            said += _PROMPTS.ids(key, tokens)
            yield Ask(prompt=said, input_tokens=len(said), output_tokens=output, conversation=index, turn=turn)
            said += _PROMPTS.ids(f"{key}/answer", output)


class Part(NamedTuple):
    """One kind of a mix, all the time or in turns."""

    kind: Kind
    share: float = 1.0  # of the load, while it is on
    on_s: float = math.inf
    every_s: float = math.inf
    first_s: float = 0.0

    def windows(self, seconds: float) -> Iterator[tuple[float, float]]:
        """Yield from when to when it is on."""
        began_s = self.first_s
        while began_s < seconds:
            yield began_s, min(began_s + self.on_s, seconds)
            began_s += self.every_s


def mixes(shift_s: float) -> dict[str, Sequence[Part]]:
    """Return all mixes by name; in `bursty` documents come in bursts that alone are more than the load asked for."""
    in_bursts = Part(DOCUMENTS, 0.5 * BURST_EVERY_S / BURST_S, BURST_S, BURST_EVERY_S, BURST_S)
    return {
        "chat": (Part(CHAT),),
        "documents": (Part(DOCUMENTS),),
        "agentic": (Part(AGENTIC),),
        "bursty": (Part(CHAT, 0.5), in_bursts),
        "shifting": (
            Part(CHAT, on_s=shift_s, every_s=2 * shift_s),
            Part(DOCUMENTS, on_s=shift_s, every_s=2 * shift_s, first_s=shift_s),
        ),
    }


@dataclass(frozen=True, slots=True)
class Traffic:
    """A `Source` that is known in advance: the conversations of a mix in the order in which they are due."""

    due_s: Sequence[float]
    asks: Sequence[Sequence[Ask]]
    turns: int = 1

    @property
    def requests(self) -> int:
        return sum(map(len, self.asks))

    def script(self, index: int) -> Script:
        for ask in self.asks[index]:
            yield ask  # noqa: UP028  # it is sent the answer, which a sequence cannot take


def load_of(parts: Sequence[Part], cost_s: Mapping[str, float], rate_per_s: float, seconds: float) -> float:
    """Return the load at which so many requests come per second, on average over the run."""
    requests = sum(part.share * _on_s(part, seconds) / cost_s[part.kind.name] for part in parts)
    return rate_per_s * seconds / requests


def plan_traffic(
    parts: Sequence[Part], cost_s: Mapping[str, float], *, load: float, seconds: float, seed: int
) -> Traffic:
    """Plan a run.

    Args:
        parts: of the mix.
        cost_s: work of one request of each kind, in seconds of one server.
        load: seconds of work that come per second; as many as there are servers are all that they can do.
        seconds: in which conversations begin.
        seed: of arrivals and prompts.
    """
    begun: list[tuple[float, list[Ask]]] = []
    for number, part in enumerate(parts):
        rate_per_s = part.share * load / cost_s[part.kind.name] / part.kind.turns
        source = Prompts(part.kind, seed)
        for index, due_s in enumerate(_arrivals_of(part, rate_per_s, seconds, seed=seed * len(parts) + number)):
            begun.append((due_s, list(source.script(index))))
    begun.sort(key=lambda each: each[0])
    return Traffic([due_s for due_s, _ in begun], [asks for _, asks in begun])


def _arrivals_of(part: Part, rate_per_s: float, seconds: float, *, seed: int) -> Iterator[float]:
    """Yield a Poisson process that stands still while the part is off."""
    on_s = _on_s(part, seconds)
    windows, before_s = part.windows(seconds), 0.0
    began_s, ended_s = next(windows, (0.0, 0.0))
    count = round(rate_per_s * on_s)
    for at_s in arrivals(count, count / on_s, seed=seed) if count else ():
        while at_s - before_s > ended_s - began_s and (following := next(windows, None)):
            before_s += ended_s - began_s
            began_s, ended_s = following
        yield began_s + at_s - before_s


def _on_s(part: Part, seconds: float) -> float:
    return sum(ended_s - began_s for began_s, ended_s in part.windows(seconds))
