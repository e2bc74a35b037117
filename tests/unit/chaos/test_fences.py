from tests.chaos.fences import Cost, Event, cost_table, gaps_at, quiet_gaps

FENCE = Event(kind="fence", begun_s=10.0, ended_s=10.05)


def test_a_gap_belongs_to_a_fence_that_lies_in_it_or_touches_it() -> None:
    """Those before and after do not."""
    gaps = [(9.90, 9.98), (9.98, 10.06), (10.02, 10.03), (10.20, 10.21)]

    assert gaps_at(gaps, FENCE) == [10.06 - 9.98, 10.03 - 10.02]


def test_quiet_gaps_are_far_from_every_event() -> None:
    """What surrounds a fence is no baseline."""
    gaps = [(8.0, 8.01), (9.8, 9.81), (10.3, 10.31), (12.0, 12.02)]

    assert quiet_gaps(gaps, [FENCE]) == [8.01 - 8.0, 12.02 - 12.0]


def test_the_table_says_what_a_fence_took_and_what_a_stream_saw() -> None:
    """In milliseconds."""
    cost = Cost(domains=2, events=[FENCE], gaps=[(9.97, 10.06), (20.0, 20.006)], hit=1, threads=60)

    (row,) = cost_table([cost]).splitlines()[2:]

    assert row.startswith("| 2 | 1 | 50.0 (50.0) | – | 90.0 (90.0) | 6.0, 6.0 (6.0) | 1 | 60 |")
