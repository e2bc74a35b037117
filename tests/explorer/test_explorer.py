"""The real machines hold I1 to I5 in every interleaving; every machine and node with a guard missing is found out."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.explorer.anything import Anything
from tests.explorer.exhaust import Found, exhaust
from tests.explorer.explore import explore
from tests.explorer.freeze import freeze, still
from tests.explorer.mutants import CALM, MUTANTS, Mutant, find
from tests.explorer.mutants_both_ways import BOTH_WAYS
from tests.explorer.scope import Scope
from tests.explorer.sides import Sides
from tests.explorer.suite import QUICK
from tests.explorer.words import story
from tests.explorer.world import World

# Left to `make explore` and `make test-all`; of the scopes there are smaller ones.
LARGE = {"network", "crash", "two, no crash", "two, one block", "two D ranks", "two P ranks", "full of each other"}
SCOPES = QUICK.scopes | {f"{name}, one fault": replace(QUICK.scopes[name], faults=1) for name in ("network", "crash")}
FAR = {
    "free everything with a fence",
    "give the token to all prompts",
    "let a restarted P inherit epochs",
    "say COMMIT once",
    "release when the first rank lets go",
    "let another reservation take over",
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
@pytest.mark.parametrize("name", _marked(SCOPES))
def test_no_interleaving_breaks_an_invariant(name: str) -> None:
    """Every state that can be reached is visited, each is sound, and each comes to rest."""
    result = explore(World(SCOPES[name]))

    print(f"{name}: {result.states:,} states, depth {result.depth}, {result.seconds:.1f} s")
    assert not result.violation, story(result.trace, result.violation)
    assert result.states > 5_000


@pytest.mark.slow
@pytest.mark.parametrize("name", _marked(QUICK.scenes))
def test_no_network_breaks_an_invariant(name: str) -> None:
    """The same over a network that loses, repeats and reorders as it likes."""
    result = exhaust(Sides(QUICK.scenes[name]))

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


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.scope == CALM], ids=lambda mutant: mutant.name)
def test_a_missing_guard_is_found_over_any_network(mutant: Mutant) -> None:
    """Putting ways and their mail together hides no mutant."""
    result = exhaust(Sides(mutant.scope, mutant.machines))

    assert result.violation.startswith(mutant.breaks)
    assert len(story(result.trace, result.violation).splitlines()) == len(result.trace) + 1


@pytest.mark.parametrize(
    "scope",
    [
        Scope(faults=1, crashes_p=0, crashes_d=0),
        pytest.param(
            Scope(faults=1, losses=0, duplicates=0, silences=0, asks_again=False), marks=pytest.mark.exhaustive
        ),
        pytest.param(Scope(faults=0, verify=True), marks=pytest.mark.exhaustive),
    ],
)
def test_a_network_that_may_do_anything_does_all_that_counted_faults_do(scope: Scope) -> None:
    """Whatever both sides and the writes come to in a scope, they come to in its scene."""
    world = World(scope)
    counted = {world.initial()}
    frontier = list(counted)
    while frontier:
        after = {there for here in frontier for _, there in world.successors(here)}
        frontier = list(after - counted)
        counted |= after
    scene = Found(Anything(world.sides))
    while scene.frontier:
        scene.expand()

    assert {scene.all.pack([p, d], writes) for p, d, _, writes, _ in counted} <= set(scene.keys)


def test_a_state_is_visited_once_whatever_its_clock_says() -> None:
    """Two machines that differ in times and in words for people alone are the same state."""

    class Machine:
        def __init__(self, since: float, reason: str) -> None:
            self.since, self.reason, self.marks, self.ends = since, reason, {"start": since}, {"e": since}

    early, late = Machine(1.0, "slow"), Machine(2.0, "gone")
    still(late)

    assert freeze(early) == freeze(late)
    assert (late.since, late.ends) == (0.0, {"e": 0.0})
