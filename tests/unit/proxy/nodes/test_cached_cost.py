"""What the cached part of a prompt costs, found from times of prompts."""

import random
from collections.abc import Sequence

import pytest

from baton.proxy.nodes.cached_cost import CachedCost
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.prefill_time import PrefillTime

RANDOM = random.Random(5)  # no secret
CONVERSATIONS = [(RANDOM.uniform(600, 2400), RANDOM.choice([0, 2048, 4096, 8192])) for _ in range(60)]


def learned(prompts: Sequence[tuple[float, float]], cost: float, *, noise: float = 0.0) -> CachedCost:
    found, draw = CachedCost(), random.Random(6)  # no secret
    for computed, cached in prompts:
        time_s = 0.02 + 1e-4 * (computed + cost * cached)
        found.add(computed, cached, time_s * draw.uniform(1 - noise, 1 + noise))
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
def test_prompts_that_do_not_say_leave_it_at_nothing(prompts: Sequence[tuple[float, float]]) -> None:
    assert learned(prompts, 0.3).cost == pytest.approx(0.0, abs=1e-6)


def test_it_lies_between_nothing_and_a_computed_byte() -> None:
    assert learned(CONVERSATIONS, 2.0).cost == 1.0
    assert learned(CONVERSATIONS, -0.005).cost == 0.0


def test_a_node_learns_it_from_prompts_behind_others_as_well() -> None:
    """What it costs so far is in what waits."""
    times = PrefillTime()
    for turn, (computed, cached) in enumerate(CONVERSATIONS * 3):
        waiting, waiting_cached = CONVERSATIONS[turn % 7]
        prompt_bytes = computed + waiting + times.cached_cost * (cached + waiting_cached)
        time_s = 1e-4 * (computed + waiting + 0.3 * (cached + waiting_cached))
        times.learn(prompt_bytes, time_s, 0.0, cached_bytes=cached)

    assert times.cached_cost == pytest.approx(0.3, abs=0.1)
    assert times.predict_s(3000, 1.0) == pytest.approx(0.3, rel=0.15)
