"""Counting values by upper bound."""

from baton.kv_connector.telemetry.histogram import Histogram


def test_a_value_counts_at_the_first_bound_that_is_not_below_it() -> None:
    """A bound belongs to what it bounds, as Prometheus' `le` says; beyond the last there is room for the rest."""
    histogram = Histogram((0.1, 1.0))

    for value in (0.05, 0.1, 0.11, 1.0, 7.0):
        histogram.observe(value)

    assert histogram.snapshot() == {"bounds": [0.1, 1.0], "counts": [2, 2, 1], "sum": 0.05 + 0.1 + 0.11 + 1.0 + 7.0}


def test_nothing_is_not_counted_and_less_than_nothing_counts_as_nothing() -> None:
    """The sum must never fall: Prometheus would take that for a restart."""
    histogram = Histogram((0.0, 1.0))

    histogram.observe(None)
    histogram.observe(-3.0)

    assert histogram.snapshot() == {"bounds": [0.0, 1.0], "counts": [1, 0, 0], "sum": 0.0}
