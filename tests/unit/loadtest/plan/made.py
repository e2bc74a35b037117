"""Loads and calibrations for tests."""

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from baton.loadtest.measures.record import Record
from baton.loadtest.plan.calibration import Calibration, Decode, Prefill
from baton.loadtest.plan.demand import Demand
from baton.loadtest.plan.simulate import Outcome, Shape, simulate
from tests.unit.loadtest.records import record

SLOW = Decode(step_s=0.010, sequence_s=0.0)


def calibration(**more: Any) -> Calibration:
    """0.1 s for each step of a prefill node, whatever is in it; 10 ms for one of a decode node."""
    values: dict[str, Any] = {"prefill": Prefill(step_s=0.1, token_s=0.0, max_num_batched_tokens=100), "decode": SLOW}
    return Calibration(**{**values, **more})


def demand(due_s: float = 0.0, tokens: int = 100, output: int = 1, **more: Any) -> Demand:
    return Demand(due_s=due_s, input_tokens=tokens, output_tokens=output, **more)


def poisson(rate_per_s: float, count: int, seed: int = 1, **more: int) -> list[Demand]:
    rng = random.Random(seed)
    return [demand(at, **more) for at in accumulate(rng.expovariate(rate_per_s) for _ in range(count))]


def run(load: Sequence[Demand], found: Calibration, prefill: int = 1, decode: int = 1) -> Outcome:
    return simulate(load, found, Shape(prefill, decode))


def step_by_step(load: Sequence[Demand], speed: Decode) -> list[Record]:
    """A decode node whose requests have their KV as they arrive, looked at step by step: slow, and easy to believe."""
    waiting, running, now_s = list(load), list[Demand](), 0.0
    made: dict[int, list[float]] = {}  # id of the demand → when each token came
    while waiting or running:
        if not running:
            now_s = max(now_s, waiting[0].due_s)
        arrived = [one for one in waiting if one.due_s <= now_s]
        waiting = waiting[len(arrived) :]
        running += arrived
        context = sum(one.input_tokens + len(made.get(id(one), [])) for one in running)
        now_s += speed.step_s + speed.sequence_s * len(running) + speed.context_token_s * context
        now_s += speed.several_s * (len(running) > 1) + speed.arrival_s * len(arrived)
        for one in running:
            made.setdefault(id(one), []).append(now_s)
        running = [one for one in running if len(made[id(one)]) < one.output_tokens]
    return [_decoded(one, made[id(one)]) for one in load]


def _decoded(one: Demand, at_s: list[float]) -> Record:
    gaps = tuple(b - a for a, b in pairwise(at_s))
    return record(one.due_s, at_s[0] - one.due_s, gaps, input_tokens=one.input_tokens)


def ttfts(outcome: Outcome) -> list[float]:
    return [record.ttft_s or 0.0 for record in outcome.records]
