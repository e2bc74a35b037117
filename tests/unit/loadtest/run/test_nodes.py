from pathlib import Path

import pytest

from baton.contracts.secret import generate_secret, read_secret
from baton.loadtest.errors import UsageError
from baton.loadtest.result import HistogramMean
from baton.loadtest.run.arguments import parse
from baton.loadtest.run.nodes import (
    Event,
    Scrape,
    Spans,
    _Arguments,
    difference,
    differences,
    parse_scrape,
    relative,
    take,
    token,
)
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


def event(name: str, ts: float, dur: float, transfer: str = "t", ph: str = "X") -> Event:
    """One of a node's trace."""
    return Event(ph=ph, name=name, args=_Arguments(transfer_id=transfer), ts=ts, dur=dur)


def test_events_of_several_looks_and_nodes_are_joined_by_transfer() -> None:
    """The same one twice is the same one; names of processes are no spans."""
    spans: Spans = {}
    take(spans, [event("prefill", 5e6, 2e6), event("pushes", 6e6, 1e6), event("process_name", 0, 0, "", "M")])
    take(spans, [event("prefill", 5e6, 2e6), event("allocation", 4e6, 1e6), event("prefill", 9e6, 1e6, "u")])

    assert spans == {
        "t": {"prefill": (5.0, 7.0), "pushes": (6.0, 7.0), "allocation": (4.0, 5.0)},
        "u": {"prefill": (9.0, 10.0)},
    }


def test_spans_count_from_the_beginning_of_the_stage_and_only_of_its_requests() -> None:
    """Others' transfers are not ours; a request without one has no legs."""
    (found,) = relative({"t": {"prefill": (5.0, 7.0)}, "others": {"prefill": (1.0, 2.0)}}, ["t", "", "unknown"], 4.0)

    assert (found.transfer_id, found.spans) == ("t", {"prefill": (1.0, 3.0)})


def test_the_secret_is_read_from_its_file(tmp_path: Path) -> None:
    """None: nobody is asked. A bad one is said to be bad."""
    path = tmp_path / "secret"
    path.write_text(generate_secret())

    assert token(None) == ""
    assert token(path) == read_secret(path).node_token()
    with pytest.raises(UsageError, match="--secret-file"):
        token(tmp_path / "nowhere")


def test_a_secret_without_nodes_is_a_mistake() -> None:
    """There would be nobody to show it to."""
    with pytest.raises(UsageError, match="--metrics-url"):
        parse(["--url", "http://a", "--secret-file", "s"], {})
