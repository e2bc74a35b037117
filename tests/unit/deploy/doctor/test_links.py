from typing import Any

import pytest

from baton.contracts.probe import Pushed, Reached
from baton.deploy.doctor.fit import Tried, Wanted, diagnose_links, rounds
from tests.unit.deploy.doctor.known import decode, prefill

WANTED = Wanted(min_mbit_s=1000, max_latency_ms=5)
GIGABIT = 125e6  # bytes per s
WELL = Pushed(first_s=0.003, latency_s=0.0002, bytes_per_s=2 * GIGABIT, after_idle_s=0.0002)


def tried(**changes: Any) -> Tried:
    """A pair between which everything is well, but for what is given."""
    return Tried(
        prefill=prefill(), decode=decode(), **{"control": Reached(), "data": Reached(), "push": WELL, **changes}
    )


def codes(*pairs: Tried) -> list[str]:
    return [finding.code for finding in diagnose_links(pairs, WANTED)]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"control": Reached(problem="nobody answers")}, ["control-unreachable"]),
        ({"control": Reached(problem="refused", refused=True)}, ["control-secret"]),
        ({"data": Reached(problem="no route")}, ["data-unreachable"]),
        ({"push": Pushed(problem="failed")}, ["data-unreachable"]),
        ({"push": Pushed(problem="failed"), "data": Reached(problem="no route")}, ["data-unreachable"]),
        ({"push": Pushed(problem="failed", first_s=0.1, latency_s=0.001)}, ["data-unreachable"]),
        ({"push": Pushed(problem="failed", first_s=0.1, latency_s=0.001, bytes_per_s=2 * GIGABIT)}, ["idle-gap"]),
        ({"push": None, "problem": "busy"}, ["probe-failed"]),
        ({"push": None, "problem": "busy", "data": Reached(problem="no route")}, ["data-unreachable"]),
        ({"push": Pushed(first_s=0.1, latency_s=0.001, bytes_per_s=0.9 * GIGABIT, after_idle_s=0.001)}, ["slow-link"]),
        ({"push": Pushed(first_s=0.1, latency_s=0.006, bytes_per_s=2 * GIGABIT, after_idle_s=0.001)}, ["latency"]),
        ({"control": None, "data": None, "push": None}, []),
    ],
)
def test_a_pair_is_judged_by_what_was_tried(changes: dict[str, Any], found: list[str]) -> None:
    """One finding for one cause; what was not tried is not judged."""
    assert codes(tried(**changes)) == found


def test_a_link_far_below_the_best_is_named_and_a_pause_with_its_length() -> None:
    """Although it is as fast as asked for; so that one knows what the firewall's limit is below."""
    fast = Pushed(first_s=0.1, latency_s=0.001, bytes_per_s=9 * GIGABIT, after_idle_s=0.001)
    assert codes(tried(push=fast), tried()) == ["slow-link"]

    (finding,) = diagnose_links([tried(push=Pushed(problem="gone", bytes_per_s=2 * GIGABIT), idle_s=350)], WANTED)
    assert "after 350 s without a byte" in finding.what


@pytest.mark.parametrize(("prefills", "decodes"), [(1, 1), (2, 3), (3, 1), (1, 4), (3, 3), (0, 2), (2, 0)])
def test_each_pair_has_its_turn_and_no_node_two_at_once(prefills: int, decodes: int) -> None:
    """In as few rounds as that takes."""
    makers = [prefill(url=f"p{i}") for i in range(prefills)]
    takers = [decode(url=f"d{i}") for i in range(decodes)]

    turns = rounds(makers, takers)

    pairs = [(one.url, other.url) for turn in turns for one, other in turn]
    assert sorted(pairs) == sorted((one.url, other.url) for one in makers for other in takers)
    for turn in turns:
        assert len({one.url for one, _ in turn}) == len({other.url for _, other in turn}) == len(turn)
    assert len(turns) == (max(prefills, decodes) if prefills and decodes else 0)
