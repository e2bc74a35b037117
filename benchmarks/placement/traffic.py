"""What is asked and when: mixes of requests, drawn before a run, so that every setup gets the same ones."""

import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

MIXES: Final = ("agentic", "documents", "bursty", "shifting", "chat", "shared")
BEGIN_S: Final = 12.0  # of what counts; chat comes before it, more than a proxy needs to predict a node's times
_NODES: Final = 2
_BURST_S, _BURST_EVERY_S, _SHIFT_S = 10, 30, 20


class Request(NamedTuple):
    """One turn of a conversation."""

    prompt: Sequence[int]
    output_tokens: int
    conversation: int  # those that begin with the same system prompt have one number
    shared_tokens: int  # of the prompt: what the conversation had before


class Conversation(NamedTuple):
    """Its turns, each of which follows the answer to the one before it."""

    begin_s: float
    turns: Sequence[Request]


class Kind(NamedTuple):
    """One kind of conversation. Each turn repeats what was said before and adds a prompt."""

    work_s: float  # of a conversation on a `cpu` node
    prompt_tokens: tuple[int, int]  # that a turn adds: at least, at most
    output_tokens: Callable[[random.Random], int]  # 2 at least
    turns: int = 1
    system_prompts: Sequence[Sequence[int]] = ()  # each conversation begins with one of them

    def draw(self, rng: random.Random, conversation: int) -> list[Request]:
        """Draw a conversation; what stands for answers in its prompts is drawn too."""
        said: Sequence[int] = ()
        if self.system_prompts:
            which = rng.randrange(len(self.system_prompts))
            conversation, said = -1 - which, self.system_prompts[which]
        turns: list[Request] = []
        while len(turns) < self.turns:
            if turns:
                said = (*turns[-1].prompt, *_draw_tokens(rng, turns[-1].output_tokens))
            prompt = (*said, *_draw_tokens(rng, rng.randint(*self.prompt_tokens)))
            turns.append(Request(prompt, self.output_tokens(rng), conversation, len(said)))
        return turns


def _draw_tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(1000, 30000) for _ in range(count))


def _draw_answer(rng: random.Random) -> int:
    return max(8, int(rng.expovariate(1 / 60)))


_CHAT: Final = Kind(0.22, (50, 300), _draw_answer)
_DOCUMENTS: Final = Kind(1.1, (1500, 3000), lambda _: 8)
_AGENTIC: Final = Kind(0.96, (150, 450), lambda rng: max(4, int(rng.gauss(12, 4))), turns=6)
_SHARED: Final = Kind(0.24, (50, 300), _draw_answer, system_prompts=[_draw_tokens(random.Random(9), 1500)])
_STEADY: Final = {"agentic": _AGENTIC, "documents": _DOCUMENTS, "chat": _CHAT, "shared": _SHARED}


class Stretch(NamedTuple):
    """Conversations of one kind, which begin as a Poisson process."""

    kind: Kind
    rate_per_s: float
    begin_s: float
    end_s: float


_WARM_UP: Final = [Stretch(_CHAT, 3.0, 0.5 * number, 0.5 * number + 0.3) for number in range(16)]


def plan_traffic(mix: str, utilisation: float, seconds: float, rng: random.Random) -> list[Conversation]:
    """Plan the conversations of a run; they begin in so many seconds after the warm-up."""
    planned: list[Conversation] = []
    for kind, rate_per_s, begin_s, end_s in (*_WARM_UP, *_stretches(mix, _NODES * utilisation, seconds)):
        at_s = begin_s
        while (at_s := at_s + rng.expovariate(rate_per_s)) <= end_s:
            planned.append(Conversation(at_s, kind.draw(rng, len(planned))))
    return planned


def _stretches(mix: str, load: float, seconds: float) -> list[Stretch]:
    """Return the parts of a mix; `load`: seconds of work per second. Bursts of documents alone are half as much again."""
    if mix == "bursty":
        begins_s = range(_BURST_S, int(seconds), _BURST_EVERY_S)
        bursts = [_stretch(_DOCUMENTS, 1.5 * load, at_s, min(seconds, at_s + _BURST_S)) for at_s in begins_s]
        return [_stretch(_CHAT, 0.5 * load, 0, seconds), *bursts]
    if mix == "shifting":
        return [
            _stretch(_DOCUMENTS if number % 2 else _CHAT, load, number * _SHIFT_S, (number + 1) * _SHIFT_S)
            for number in range(int(seconds // _SHIFT_S))
        ]
    return [_stretch(_STEADY[mix], load, 0, seconds)]


def _stretch(kind: Kind, load: float, begin_s: float, end_s: float) -> Stretch:
    return Stretch(kind, load / kind.work_s, BEGIN_S + begin_s, BEGIN_S + end_s)
