import pytest

from baton.loadtest.measures.record import TIMEOUT, Record
from baton.loadtest.measures.stable import find_stage, stable
from tests.unit.loadtest.records import failed, record


def lasting(started_s: float, ended_s: float) -> Record:
    """A request in flight from then to then."""
    return record(started_s, ended_s - started_s, ())


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 10), (1, 9), (2, 8)], (2, 8, 3)),  # from the third one's start to the first end
        ([(0, 1.0), (0, 2.0), (1.001, 3.0), (2.001, 5.0)], (0, 3.0, 2)),  # a closed loop's dip of a moment is no end
        ([(0, 4.0), (0, 1.0), (1.2, 4.0)], (0, 1.0, 2)),  # a longer one is, though the maximum comes again
        ([(0, 1), (2, 6), (3, 5)], (3, 5, 2)),  # it begins where the maximum is reached, not where it is neared
    ],
)
def test_the_stage_runs_from_the_maximum_to_its_end(
    spans: list[tuple[float, float]], expected: tuple[float, float, int]
) -> None:
    """From when concurrency first is at its most until it first leaves that for longer than a worker's next request takes."""
    assert find_stage([lasting(*span) for span in spans]) == expected


def test_failed_requests_count_for_concurrency_alone() -> None:
    """They occupied the server, and have no figures."""
    got = stable([lasting(0, 10), failed(TIMEOUT, 1.0, ended_s=9.0)])

    assert got is not None
    assert (got.stage, got.requests) == ((1.0, 9.0, 2), 0)


def test_the_table_has_each_request_that_began_in_the_stage() -> None:
    """The ramp's first request is outside."""
    got = stable([record(0, 5.0), record(1, 0.1, (0.02, 0.04)), record(1.17, 0.2, (0.02,), input_tokens=30)])

    assert got is not None
    rows = {row.name: row.spread for row in got.rows}
    assert [row.name for row in got.rows] == [
        *("E2EL", "TTFT", "TPOT", "ITL", "InputTokens", "OutputTokens", "OutputTokenThroughput")
    ]
    assert got.requests == 2
    assert rows["TTFT"].mean == pytest.approx(150)
    assert rows["ITL"].n == 3
    assert rows["InputTokens"].most == 30
    assert rows["OutputTokenThroughput"].least == pytest.approx(2 / 0.22)
