"""The real machines hold I1 to I5 in every interleaving; every machine and node with a guard missing is found out."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.explorer.exhaust import exhaust
from tests.explorer.freeze import freeze, still
from tests.explorer.mutants import MUTANTS, Mutant, find
from tests.explorer.mutants_both_ways import BOTH_WAYS
from tests.explorer.sides import Sides
from tests.explorer.suite import QUICK
from tests.explorer.words import story

# Left to `make explore` and `make test-all`.
LARGE = {"two, no crash", "two, one block", "two D ranks", "two P ranks", "full of each other"}
FAR = {
    "free everything with a fence",
    "give the token to all prompts",
    "release when the first rank lets go",
    "make no room",
    "send a preempted prompt",
    "void for the first rank alone",
    "receive into cached blocks too",
    "give up what is reserved",
    "hash the prompt without its answer",
}


def _marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.exhaustive if name in LARGE else ()) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", _marked(QUICK))
def test_no_network_breaks_an_invariant(name: str) -> None:
    """Every state that can be reached is visited, each is sound, and each comes to rest, over a network that loses, repeats and reorders as it likes."""
    result = exhaust(Sides(QUICK[name]))

    print(f"{name}: {result.states:,} states, {result.seconds:.1f} s")
    assert not result.violation, story(result.trace, result.violation)
    assert result.frontier == 0


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=pytest.mark.exhaustive if mutant.name in FAR else ())
        for mutant in MUTANTS + BOTH_WAYS
    ],
)
def test_a_missing_guard_is_found(mutant: Mutant) -> None:
    """The explorer finds the invariant that a mutant breaks, and can tell how."""
    result = find(mutant)

    assert result.violation.startswith(mutant.breaks)
    assert len(story(result.trace, result.violation).splitlines()) == len(result.trace) + 1


def test_a_state_is_visited_once_whatever_its_clock_says() -> None:
    """Two machines that differ in times and in words for people alone are the same state."""

    class Machine:
        def __init__(self, since: float, reason: str) -> None:
            self.since, self.reason, self.marks, self.ends = since, reason, {"start": since}, {"e": since}

    early, late = Machine(1.0, "slow"), Machine(2.0, "gone")
    still(late)

    assert freeze(early) == freeze(late)
    assert (late.since, late.ends) == (0.0, {"e": 0.0})
