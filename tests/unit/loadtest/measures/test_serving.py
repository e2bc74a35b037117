import pytest

from baton.loadtest.errors import UsageError
from baton.loadtest.measures.record import CUT, STATUS, TIMEOUT
from baton.loadtest.measures.serving import by_second, errors_by_kind, parse_slos, paths, serving
from tests.unit.loadtest.records import failed, record


def test_tpot_leaves_the_first_token_out() -> None:
    """(E2EL - TTFT) / (tokens - 1), whatever the number of events was."""
    assert record(ttft_s=1.0, gaps=(0.3, 0.3), output_tokens=7).tpot_s == pytest.approx(0.1)
    assert record(gaps=()).tpot_s is None  # there is no second token to wait for


def test_throughput_counts_completed_requests_alone() -> None:
    """Failed ones are counted, and give no tokens."""
    got = serving([record(), record(), failed(TIMEOUT, input_tokens=99, output_tokens=5)], 2.0, {})

    assert (got.completed, got.failed) == (2, 1)
    assert (got.input_tokens, got.output_tokens) == (20, 6)
    assert (got.requests_per_s, got.output_tokens_per_s, got.tokens_per_s) == (1.0, 3.0, 13.0)


def test_gaps_of_all_requests_are_one_sample() -> None:
    """A request with many tokens weighs more in ITL, and not in TPOT."""
    got = serving([record(gaps=(0.1,) * 9), record(gaps=(0.2,))], 1.0, {})

    assert got.itl.mean == pytest.approx(1.1 / 10)
    assert got.tpot.mean == pytest.approx(0.15)


def test_goodput_needs_every_slo() -> None:
    """One broken promise is enough; a limit itself is kept."""
    both = [record(ttft_s=0.5, gaps=(0.05,)), record(ttft_s=0.6, gaps=(0.05,)), record(ttft_s=0.5, gaps=(0.06,))]

    got = serving(both, 1.0, parse_slos(["ttft:500", "tpot:51"]))

    assert (got.good, got.goodput_per_s) == (1, 1.0)
    assert serving([failed(CUT)], 1.0, {"ttft": 1000.0}).good == 0  # it has no times to be late with
    assert serving([record()], 1.0, {}).goodput_per_s is None  # no SLOs: not 0


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:-1", "itl:50", "ttft:nan", ":5"])
def test_a_wrong_slo_is_named(word: str) -> None:
    """The sentence repeats the word."""
    with pytest.raises(UsageError, match=f"--goodput {word}:"):
        parse_slos([word])


def test_the_busiest_second_counts_tokens_and_requests() -> None:
    """Seconds count from the first request; a request counts in each second that it touches."""
    tokens, requests = by_second([record(5.0, 0.5, (0.6, 0.2)), record(6.1, 0.2, (0.1,))])

    assert (max(tokens), max(requests)) == (4, 2)


def test_errors_are_counted_by_kind_and_statuses_by_number() -> None:
    """Completed requests are none of them."""
    records = [failed(CUT), record(), *(failed(STATUS, status=status) for status in (503, 400, 503))]

    assert list(errors_by_kind(records).items()) == [("status 400", 1), ("status 503", 2), ("cut", 1)]


def test_paths_of_completed_requests_are_counted() -> None:
    """A server that names none gives none."""
    records = [record(path="local"), record(path="disaggregated"), record(path="local"), failed(CUT, path="local")]

    assert list(paths(records).items()) == [("disaggregated", 1), ("local", 2)]
    assert paths([record()]) == {}
