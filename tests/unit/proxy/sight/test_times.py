from itertools import pairwise

from prometheus_client.core import HistogramMetricFamily

from proxy.metrics import render
from proxy.sight.times import GAP_BOUNDS_S, LEG_BOUNDS_S, Times


def rendered(times: Times) -> list[str]:
    """The lines of a histogram of one node."""
    family = HistogramMetricFamily("took_seconds", "Time", labels=("url",))
    times.add_to(family, ("http://a",))
    return [line for line in render([family]).decode().splitlines() if line[0] != "#"]


def test_a_histogram_reads_as_prometheus_wants_it() -> None:
    """Buckets count what is below them too, a bound belongs to its bucket, and what is beyond all of them is in +Inf."""
    times = Times((0.5, 2.0))
    for time_s in (0.25, 0.5, 1.0, 4.0):
        times.observe(time_s)

    assert rendered(times) == [
        'took_seconds_bucket{le="0.5",url="http://a"} 2.0',
        'took_seconds_bucket{le="2.0",url="http://a"} 3.0',
        'took_seconds_bucket{le="+Inf",url="http://a"} 4.0',
        'took_seconds_count{url="http://a"} 4.0',
        'took_seconds_sum{url="http://a"} 5.75',
    ]


def test_what_was_never_timed_shows_no_series() -> None:
    """A node has a dozen lines for each kind of time: those that say nothing are left out."""
    assert rendered(Times((1.0,))) == []


def test_bounds_rise() -> None:
    """A bisection needs that."""
    for bounds_s in (GAP_BOUNDS_S, LEG_BOUNDS_S):
        assert all(one < next_one for one, next_one in pairwise(bounds_s))
