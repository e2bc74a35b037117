"""Which fault comes when: drawn from a seed, so that a run can be repeated. Pure."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from tests.chaos.phases import ORDER, Phase

STAYS: Final = 0.15  # share of clients that want the whole answer
ENDLESS_EVERY: Final = 11  # stalls; not a multiple of the number of victims
ENGINE_ONLY: Final = 0.3  # of the faults of nodes
LONG_ANSWERS: Final = 0.3  # … the others are short


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One client: what it asks, and at which moment it leaves."""

    number: int
    prompt: int  # which one of the reference table
    max_tokens: int
    stream: bool
    leaves: Phase | None  # None: it stays
    reset: bool  # it leaves with RST, not FIN
    patience: float  # in [0, 1): how far into the phase, where that can be chosen
    start_s: float  # after the wave's beginning


Victim = Literal["prefill", "decode", "proxy", "link"]
VICTIMS: Final[tuple[Victim, ...]] = ("prefill", "decode", "proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One process, or one node, is killed (SIGKILL) and started again."""

    number: int
    victim: Victim
    phase: Phase
    engine_only: bool  # of a node: its engine process alone
    other_port: bool  # a prefill node comes back with another control port
    lasts_s: float  # until it is started again


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """One node or the proxy is stopped (SIGSTOP) and continued."""

    number: int
    victim: Victim
    phase: Phase
    lasts_s: float
    engine_only: bool = False  # of a node: its engine process alone; its API process goes on and looks healthy


class Way(StrEnum):
    """How a link is cut: between the nodes, or between the proxy and the nodes of one kind."""

    DOWN = "P–D link down"
    DROP_ALL = "P–D all dropped"
    DROP_DATA = "P–D data dropped"
    DROP_CONTROL = "P–D control dropped"
    DROP_TO_DECODE = "P to D dropped"
    DROP_TO_PREFILL = "D to P dropped"
    DROP_HTTP_PREFILL = "proxy–P dropped"
    DROP_HTTP_DECODE = "proxy–D dropped"


WAYS: Final = tuple(Way)
HTTP_WAYS: Final = (Way.DROP_HTTP_PREFILL, Way.DROP_HTTP_DECODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The link between the nodes is cut and healed."""

    number: int
    way: Way
    phase: Phase
    lasts_s: float

    @property
    def victim(self) -> Victim:
        return "link"


Fault = Kill | Stall | Cut


def wave(
    *, seed: int, number: int, size: int, missing: Mapping[Phase, int], prompts: int, max_tokens: int, span_s: float
) -> list[Errand]:
    """Draw the clients of one wave; phases in proportion to what is still missing of each.

    Args:
        seed: of the run.
        number: of the wave.
        size: how many clients.
        missing: how many leaving clients each phase still needs.
        prompts: how many the reference table has.
        max_tokens: the longest answer.
        span_s: over which the clients start.
    """
    rng = random.Random(f"{seed}/wave/{number}")
    wanted = [phase for phase in ORDER if missing.get(phase, 0) > 0]
    weights = [missing[phase] for phase in wanted]
    errands = []
    for index in range(size):
        leaves = rng.choices(wanted, weights)[0] if wanted and rng.random() >= STAYS else None
        decodes = leaves in (Phase.FIRST_TOKEN, Phase.DECODING)  # needs an answer that is seen to come, and that lasts
        errands.append(
            Errand(
                number=number * size + index,
                prompt=rng.randrange(prompts),
                max_tokens=max_tokens if decodes else _answer_length(rng, max_tokens),
                stream=decodes or rng.random() < 0.6,
                leaves=leaves,
                reset=rng.random() < 0.5,
                patience=rng.random(),
                start_s=rng.uniform(0.0, span_s),
            )
        )
    return errands


def kills(seed: int, count: int, peer_timeout_s: float, phases: tuple[Phase, ...] = ORDER) -> list[Kill]:
    """Draw kills; victims and phases take turns, so that a short run has each victim and a long one each pair."""
    rng = random.Random(f"{seed}/kills")
    pairs = [(victim, phase) for phase in _shuffled(rng, phases) for victim in VICTIMS]
    return [
        Kill(
            number=number,
            victim=pairs[number % len(pairs)][0],
            phase=pairs[number % len(pairs)][1],
            engine_only=pairs[number % len(pairs)][0] != "proxy" and rng.random() < ENGINE_ONLY,
            other_port=rng.random() < 0.5,
            lasts_s=rng.choice((0.0, 1.0, peer_timeout_s + 1.0)),
        )
        for number in range(count)
    ]


def stalls(seed: int, count: int, peer_timeout_s: float, request_timeout_s: float) -> list[Stall]:
    """Draw stalls, half of them longer than a silent peer is waited for, a few longer than a request may take."""
    rng = random.Random(f"{seed}/stalls")
    pairs = [(victim, phase) for phase in _shuffled(rng, ORDER) for victim in VICTIMS]
    drawn = []
    for number in range(count):
        lasts_s = rng.uniform(0.5, 1.5) if number % 2 else peer_timeout_s + rng.uniform(1.0, 3.0)
        if number % ENDLESS_EVERY == ENDLESS_EVERY - 1:
            lasts_s = request_timeout_s + 3.0
        victim, phase = pairs[number % len(pairs)]
        engine_only = victim != "proxy" and rng.random() < ENGINE_ONLY
        stall = Stall(number=number, victim=victim, phase=phase, lasts_s=round(lasts_s, 2), engine_only=engine_only)
        drawn.append(stall)
    return drawn


def cuts(seed: int, count: int, peer_timeout_s: float) -> list[Cut]:
    """Draw cuts of the link between the nodes; every way takes its turn."""
    rng = random.Random(f"{seed}/links")
    middle = (Phase.WAITING, Phase.BETWEEN_CHUNKS, Phase.BETWEEN_LAYERS)
    return [
        Cut(
            number=number,
            way=WAYS[number % len(WAYS)],
            phase=rng.choice(middle),
            lasts_s=round(rng.uniform(0.5, 1.5) if rng.random() < 0.4 else peer_timeout_s + rng.uniform(1.0, 3.0), 2),
        )
        for number in range(count)
    ]


def _answer_length(rng: random.Random, longest: int) -> int:
    if rng.random() < LONG_ANSWERS:
        return rng.randint(longest // 2, longest)
    return rng.randint(1, max(1, longest // 4))


def _shuffled(rng: random.Random, phases: tuple[Phase, ...]) -> list[Phase]:
    return rng.sample(phases, len(phases))
