from baton.loadtest.result import HistogramMean
from baton.loadtest.run.node_metrics import Scrape, difference, differences, parse_scrape
from tests.support.fake_openai import METRICS


def scraped(n: int) -> Scrape:
    """A node after so many requests."""
    return parse_scrape(METRICS.format(n=n, ttft=0.25 * n, hidden=0.5 * n))


def test_series_are_added_up_over_their_labels() -> None:
    """Two engines of one node count together."""
    got = scraped(10)

    assert (got.sums["ttft_s"], got.counts["ttft_s"]) == (5.0, 20.0)
    assert got.transfers == {"loaded": 10.0, "recomputed": 3.0}


def test_only_what_happened_in_between_counts() -> None:
    """After minus before; what did not move is left out."""
    got = difference("u", scraped(10), scraped(14))

    assert got.histograms == {"ttft_s": HistogramMean(8, 0.25), "hidden_share": HistogramMean(4, 0.5)}
    assert got.transfers == {"loaded": 4}


def test_a_restart_is_no_negative_figure() -> None:
    """Counters that fell tell nothing."""
    got = difference("u", scraped(10), scraped(4))

    assert (got.histograms, got.note) == ({}, "the node was restarted during the stage")


def test_a_node_that_cannot_be_read_says_why() -> None:
    """Before or after."""
    first, second = differences({"a": "gone", "b": scraped(1)}, {"a": scraped(1), "b": "gone too"})

    assert (first.note, second.note) == ("gone", "gone too")
