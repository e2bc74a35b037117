from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from tests.chaos.phases import ORDER, Phase
from tests.chaos.schedule import VICTIMS, WAYS, Cut, Errand, Kill, Stall, cuts, kills, stalls, wave

MISSING = dict.fromkeys(ORDER, 10)


def draw(seed: int, number: int, size: int, missing: Mapping[Phase, int] = MISSING) -> list[Errand]:
    """A wave over some reference table."""
    return wave(seed=seed, number=number, size=size, missing=missing, prompts=90, max_tokens=48, span_s=1.0)


def test_clients_leave_in_the_phases_that_are_missing() -> None:
    """A phase that has had its share is not drawn again; some clients stay in any case."""
    errands = draw(1, 0, 400, {Phase.QUEUED: 30, Phase.DECODING: 10, Phase.WAITING: 0})

    drawn = Counter(errand.leaves for errand in errands)
    assert set(drawn) == {Phase.QUEUED, Phase.DECODING, None}
    assert drawn[Phase.QUEUED] > drawn[Phase.DECODING]


@pytest.mark.parametrize("kind", ["kills", "stalls"])
def test_every_victim_meets_every_phase(kind: str) -> None:
    """As many faults as there are pairs hit each pair once; the first three hit each victim."""
    pairs = len(ORDER) * len(VICTIMS)
    faults: Sequence[Kill | Stall] = kills(1, pairs, 5.0) if kind == "kills" else stalls(1, pairs, 5.0, 30.0)

    assert len({(fault.victim, fault.phase) for fault in faults}) == pairs
    assert {fault.victim for fault in faults[:3]} == set(VICTIMS)


def test_some_stalls_and_cuts_outlast_a_silent_peers_time() -> None:
    """Short ones must be survived, long ones must be noticed."""
    both: list[Sequence[Stall | Cut]] = [stalls(1, 12, 5.0, 30.0), cuts(1, 12, 5.0)]
    for faults in both:
        lengths = [fault.lasts_s for fault in faults]
        assert min(lengths) < 5.0 < max(lengths)


def test_a_few_stalls_outlast_a_request() -> None:
    """What never comes back must be bounded as well."""
    assert sum(stall.lasts_s > 30.0 for stall in stalls(1, 50, 5.0, 30.0)) == 4


def test_every_way_to_cut_a_link_takes_its_turn() -> None:
    """Both directions, each channel alone, and everything."""
    assert {cut.way for cut in cuts(1, len(WAYS), 5.0)} == set(WAYS)
