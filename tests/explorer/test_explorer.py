"""The real machines hold I1 to I5 in every interleaving; every machine with a guard missing is found out."""

import pytest

from tests.explorer.explore import explore
from tests.explorer.freeze import freeze, still
from tests.explorer.mutants import MUTANTS, Mutant
from tests.explorer.suite import QUICK
from tests.explorer.words import story
from tests.explorer.world import World


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_no_interleaving_breaks_an_invariant(name: str) -> None:
    """Every state that can be reached is visited, each is sound, and each comes to rest."""
    result = explore(World(QUICK[name]))

    print(f"{name}: {result.states:,} states, depth {result.depth}, {result.seconds:.1f} s")
    assert not result.violation, story(result.trace, result.violation)
    assert result.states > 10_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_missing_guard_is_found(mutant: Mutant) -> None:
    """The explorer finds the invariant that a mutant breaks, and can tell how."""
    result = explore(World(mutant.scope, mutant.producer, mutant.consumer))

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
