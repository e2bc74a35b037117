"""What the cached part of a prompt costs, found from times of prompts."""

import random

import pytest

from baton.proxy.nodes.cached_cost import CachedCost, Prompt
from baton.proxy.nodes.faded_line import MIN_SAMPLES
from baton.proxy.nodes.prefill_time import PrefillTime

RANDOM = random.Random(5)  # no secret
CONVERSATIONS = [Prompt(RANDOM.uniform(600, 2400), RANDOM.choice([0, 2048, 4096, 8192])) for _ in range(60)]


def learned(prompts: list[Prompt], cost: float, *, noise: float = 0.0) -> CachedCost:
    found, draw = CachedCost(), random.Random(6)  # no secret
    for prompt in prompts:
        time_s = 0.02 + 1e-4 * (prompt.computed + cost * prompt.cached)
        found.add(prompt, time_s * draw.uniform(1 - noise, 1 + noise))
    return found


@pytest.mark.parametrize("cost", [0.0, 0.05, 0.3, 1.0])
def test_the_cost_is_found(cost: float) -> None:
    assert learned(CONVERSATIONS, cost).cost == pytest.approx(cost, abs=1e-6)


def test_it_is_found_among_times_that_scatter() -> None:
    assert learned(CONVERSATIONS, 0.3, noise=0.3).cost == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize(
    "prompts",
    [
        CONVERSATIONS[: MIN_SAMPLES - 1],
        [Prompt(size, 0) for size, _ in CONVERSATIONS],
        [Prompt(size, 4096) for size, _ in CONVERSATIONS],
        [Prompt(1000, cached) for _, cached in CONVERSATIONS],
        [Prompt(size, 2 * size) for size, _ in CONVERSATIONS],
    ],
    ids=["few", "none cached", "as much cached each time", "as much computed each time", "a fixed share cached"],
)
def test_prompts_that_do_not_say_leave_it_at_nothing(prompts: list[Prompt]) -> None:
    assert learned(prompts, 0.3).cost == 0.0


def test_it_lies_between_nothing_and_a_computed_byte() -> None:
    assert learned(CONVERSATIONS, 2.0).cost == 1.0
    assert learned(CONVERSATIONS, -0.005).cost == 0.0


def test_only_prompts_that_waited_for_none_teach_it() -> None:
    alone, behind = PrefillTime(), PrefillTime()
    for prompt in CONVERSATIONS:
        time_s = 1e-4 * (prompt.computed + 0.3 * prompt.cached)
        alone.learn(prompt.computed, time_s, 0.0, alone=prompt)
        behind.learn(prompt.computed, time_s, 0.0)

    assert (alone.cached_cost, behind.cached_cost) == (pytest.approx(0.3, abs=0.05), 0.0)
