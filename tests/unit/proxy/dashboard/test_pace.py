"""How many may look."""

from baton.proxy.dashboard.routes import ANSWERS_PER_S, BURST, Pace


def test_a_burst_is_bounded_and_what_follows_it_is_even() -> None:
    now_s = 0.0
    pace = Pace(lambda: now_s)

    burst = sum(pace.allows() for _ in range(1000))
    now_s = 2.0
    later = sum(pace.allows() for _ in range(1000))
    now_s = 3600.0
    after_an_hour = sum(pace.allows() for _ in range(1000))

    assert (burst, later, after_an_hour) == (BURST, min(BURST, 2 * ANSWERS_PER_S), BURST)
