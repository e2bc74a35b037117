from collections import Counter

from tests.chaos.matrix import fault_table, hit_of, rows_of, storm_table, table
from tests.chaos.outcome import Outcome
from tests.chaos.phases import Phase
from tests.chaos.schedule import Kill, Stall
from tests.chaos.tally import Tally


def outcome(phase: Phase, *, reached: bool = True, **more: object) -> Outcome:
    """One kill of a prefill node."""
    fault = Kill(number=0, victim="prefill", phase=phase, engine_only=False, other_port=False, restart_after_s=0.0)
    made = Outcome(fault=fault, reached=reached, bound_s=9.0)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_faults_of_a_kind_are_summed_up() -> None:
    """Counts add, times are the worst."""
    rows = rows_of(
        [
            outcome(Phase.WAITING, results=Counter({"exact (recomputed)": 3}), slowest_s=1.0, given_back_s=0.5),
            outcome(Phase.WAITING, results=Counter({"exact (recomputed)": 2}), slowest_s=5.0, given_back_s=0.1),
            outcome(Phase.DECODING),
        ]
    )

    row = rows["P killed", Phase.WAITING]
    assert (row.faults, row.slowest_s, row.given_back_s) == (2, 5.0, 0.5)
    assert row.results == {"exact (recomputed)": 5}
    assert len(rows) == 2


def test_an_engine_alone_has_rows_of_its_own() -> None:
    """Its API process lives on, so that others see something else."""
    alone = outcome(Phase.WAITING)
    alone.fault = Stall(number=0, victim="decode", phase=Phase.WAITING, lasts_s=1.0, engine_only=True)

    assert hit_of(alone.fault) == "D's engine stopped"
    assert set(rows_of([alone, outcome(Phase.WAITING)])) == {
        ("D's engine stopped", Phase.WAITING),
        ("P killed", Phase.WAITING),
    }


def test_a_phase_that_was_not_seen_is_not_in_the_matrix() -> None:
    """A fault counts only where it is known that a request was there."""
    assert rows_of([outcome(Phase.WAITING, reached=False)]) == {}


def test_problems_stand_out() -> None:
    """In the row in which they happened."""
    assert "1 problems" in fault_table([outcome(Phase.WAITING, problems=["wrong token"])])


def test_every_phase_has_a_row_in_the_storms_table() -> None:
    """Also one in which nobody left."""
    tally = Tally(left=Counter({Phase.QUEUED: 2}), given_back_s={Phase.QUEUED: [0.2, 0.1]})

    text = storm_table(tally)

    assert all(str(phase) in text for phase in Phase)
    assert "| queued on P | 2 | 0.200 | 0.200 |" in text


def test_a_table_is_markdown() -> None:
    """Header, rule, rows."""
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n|---|---|\n| 1 | 2 |"
