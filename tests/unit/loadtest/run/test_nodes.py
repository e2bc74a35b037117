from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from baton.contracts.secret import generate_secret, read_secret
from baton.loadtest.errors import UsageError
from baton.loadtest.result import HistogramMean
from baton.loadtest.run import nodes
from baton.loadtest.run.nodes import Scrape, difference, differences, parse_scrape, scrapes, token
from tests.support.fake_openai import METRICS


def scraped(n: int) -> Scrape:
    """A node after so many requests."""
    return parse_scrape(METRICS.format(n=n, ttft=0.25 * n, hidden=0.5 * n))


def test_series_are_added_up_over_their_labels() -> None:
    """Two engines of one node count together."""
    got = scraped(10)

    assert (got["sum", "ttft_s"], got["count", "ttft_s"]) == (5.0, 20.0)
    assert (got["transfers", "loaded"], got["transfers", "recomputed"]) == (10.0, 3.0)


def test_only_what_happened_in_between_counts() -> None:
    """After minus before; what did not move is left out. Counters that fell tell nothing: the node was restarted."""
    got = difference("u", scraped(10), scraped(14))

    assert got.histograms == {"ttft_s": HistogramMean(8, 0.25), "hidden_share": HistogramMean(4, 0.5)}
    assert got.transfers == {"loaded": 4}
    got = difference("u", scraped(10), scraped(4))
    assert (got.histograms, got.note) == ({}, "the node was restarted during the stage")
    without_sums = parse_scrape("vllm:time_to_first_token_seconds_count 3")
    assert difference("u", parse_scrape(""), without_sums).histograms == {}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e300"])
def test_what_can_be_no_count_is_none(value: str) -> None:
    """It would end the run behind its last request."""
    with pytest.raises(ValueError, match="can be no count"):
        parse_scrape(f"vllm:time_to_first_token_seconds_count {value}")


async def test_metrics_that_end_the_parser_are_no_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for the first letter of a label's name that is not there."""
    monkeypatch.setattr(nodes, "fetch", AsyncMock(return_value=b'a{b="c", ="d"} 1\n'))

    assert await scrapes({"a": Mock()}) == {"a": "it is not in Prometheus' format"}


def test_a_node_that_cannot_be_read_says_why() -> None:
    """Before or after."""
    first, second = differences({"a": "gone", "b": scraped(1)}, {"a": scraped(1), "b": "gone too"})

    assert (first.note, second.note) == ("gone", "gone too")


def test_the_secret_is_read_from_its_file(tmp_path: Path) -> None:
    """None: no node is asked. A bad one is said to be bad."""
    path = tmp_path / "secret"
    path.write_text(generate_secret())

    assert token(None) == ""
    assert token(path) == read_secret(path).node_token()
    with pytest.raises(UsageError, match="--secret-file"):
        token(tmp_path / "nowhere")
