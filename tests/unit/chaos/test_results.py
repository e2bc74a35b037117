"""Outcomes that are kept."""

from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.outcome import Outcome
from tests.chaos.phases import Phase
from tests.chaos.results import add, read
from tests.chaos.schedule import Cut, Fault, Kill, Stall, Way

KILL = Kill(number=1, victim="decode", phase=Phase.WAITING, engine_only=True, other_port=False, restart_after_s=1.0)
STALL = Stall(number=2, victim="proxy", phase=Phase.QUEUED, lasts_s=0.5)
CUT = Cut(number=3, way=Way.DROP_DATA, phase=Phase.BETWEEN_LAYERS, lasts_s=6.0)


@pytest.mark.parametrize("fault", [KILL, STALL, CUT])
def test_what_is_kept_comes_back_equal(fault: Fault, tmp_path: Path) -> None:
    """Counters, phases and ways included; what comes later is added."""
    outcome = Outcome(fault=fault, reached=True, results=Counter(exact=3), slowest_s=1.5, problems=["one"])

    add(tmp_path / "kept", [outcome])
    add(tmp_path / "kept", [outcome])

    assert read(tmp_path / "kept") == [outcome, outcome]
    assert [type(kept.fault.phase) for kept in read(tmp_path / "kept")] == [Phase, Phase]


def test_nothing_was_kept_yet(tmp_path: Path) -> None:
    """The first of several runs."""
    assert read(tmp_path / "kept") == []
