"""What the cached part of a prompt costs, found from times of prompts."""

import random
from collections.abc import Sequence

import pytest

from baton.proxy.nodes.cached_cost import CachedCost, PromptParts
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.prefill_time import PrefillTime

RANDOM = random.Random(5)
CONVERSATIONS = [(RANDOM.randrange(600, 2400), RANDOM.choice([0, 2048, 4096, 8192])) for _ in range(60)]


def learned(prompts: Sequence[tuple[int, int]], cost: float, *, noise: float = 0.0) -> CachedCost:
    found, draw = CachedCost(), random.Random(6)
    for computed, cached in prompts:
        time_s = 0.02 + 1e-4 * (computed + cost * cached)
        found.add(PromptParts(computed, cached), time_s * draw.uniform(1 - noise, 1 + noise))
    return found


@pytest.mark.parametrize("cost", [0.0, 0.05, 0.3, 1.0])
def test_the_cost_is_found(cost: float) -> None:
    assert learned(CONVERSATIONS, cost).cost == pytest.approx(cost, rel=0.2, abs=1e-6)


def test_it_is_found_among_times_that_scatter() -> None:
    assert learned(CONVERSATIONS, 0.3, noise=0.3).cost == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize(
    "prompts",
    [
        [(size, 0) for size, _ in CONVERSATIONS] + [(1000, 4096)] * (MIN_SAMPLES - 1),
        [(size, 0) for size, _ in CONVERSATIONS],
        [(size, 4096) for size, _ in CONVERSATIONS],
    ],
    ids=["few cached", "none cached", "as much cached each time"],
)
def test_prompts_that_do_not_say_leave_it_at_nothing(prompts: Sequence[tuple[int, int]]) -> None:
    assert learned(prompts, 0.3).cost == pytest.approx(0.0, abs=1e-6)


def test_it_lies_between_nothing_and_a_computed_byte() -> None:
    assert learned(CONVERSATIONS, 2.0).cost == 1.0
    assert learned(CONVERSATIONS, -0.005).cost == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_it_stays_where_times_do_not_say_what_a_computed_byte_takes(seed: int) -> None:
    """Short turns behind long conversations: what they take is less than what chance adds."""
    draw, found = random.Random(seed), CachedCost()
    for _ in range(200):
        parts = PromptParts(draw.randrange(600, 1100), draw.randrange(200_000))
        found.add(parts, 1e-4 * (parts.computed + 0.28 * parts.cached) * draw.uniform(0.95, 1.05))
        assert found.cost < 0.35


@pytest.mark.parametrize("flight", [1, 30, 100])
def test_a_node_finds_it_however_many_prompts_are_in_flight(flight: int) -> None:
    times, sent = PrefillTime(), list[tuple[PromptParts, float]]()
    for parts in CONVERSATIONS * 10:
        computed, cached = parts
        sent.append((PromptParts(computed, cached), computed + times.cached_cost * cached))
        if len(sent) == flight:
            alone, work_bytes = sent.pop(0)
            times.learn(work_bytes, 1e-4 * (alone.computed + 0.3 * alone.cached), 0.0, unqueued=alone)
            assert times.cached_cost <= 0.31

    assert times.cached_cost == pytest.approx(0.3, abs=0.05)
    assert times.predict_s(3000, 1.0) == pytest.approx(0.3, rel=0.15)
