import numpy as np
import pytest

from baton.loadtest.errors import UsageError
from baton.loadtest.measures.percentile import percentile, spread
from baton.loadtest.measures.record import CUT, STATUS, TIMEOUT, Record
from baton.loadtest.measures.serving import by_second, errors_by_kind, find_stage, parse_slos, paths, serving, stable
from tests.unit.loadtest.records import failed, record

SAMPLE = [0.31, 0.02, 0.75, 0.11, 0.99, 0.45, 0.08]


@pytest.mark.parametrize("percent", [0, 33.3, 50, 99, 100])
@pytest.mark.parametrize("sample", [SAMPLE, SAMPLE[:1], SAMPLE * 30])
def test_percentiles_are_numpys(sample: list[float], percent: float) -> None:
    """What vLLM prints is numpy's default, linear between ranks."""
    assert percentile(sorted(sample), percent) == pytest.approx(float(np.percentile(sample, percent)), abs=1e-15)


def test_a_fixed_sample_by_hand() -> None:
    """Ten values: P90 lies nine tenths of the way from the first to the last rank, at 9.1. An empty sample is 0, as in vLLM's table."""
    got = spread(float(value) for value in range(10, 0, -1))

    assert (got.n, got.mean, got.least, got.most, got.median) == (10, 5.5, 1.0, 10.0, 5.5)
    assert (got.p75, got.p90, got.p99) == pytest.approx((7.75, 9.1, 9.91))
    assert got.std == pytest.approx(float(np.std(range(1, 11))))
    assert spread([]) == (0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_tpot_leaves_the_first_token_out() -> None:
    """(E2EL - TTFT) / (tokens - 1), whatever the number of events was."""
    assert record(ttft_s=1.0, gaps=(0.3, 0.3), output_tokens=7).tpot_s == pytest.approx(0.1)
    assert record(gaps=()).tpot_s is None  # there is no second token to wait for


def test_throughput_counts_completed_requests_alone() -> None:
    """Failed ones are counted, and give no tokens. A request with many tokens weighs more in ITL, and not in TPOT."""
    got = serving([record(), record(), failed(TIMEOUT, input_tokens=99, output_tokens=5)], 2.0, {})
    uneven = serving([record(gaps=(0.1,) * 9), record(gaps=(0.2,))], 1.0, {})

    assert (got.completed, got.failed) == (2, 1)
    assert (got.input_tokens, got.output_tokens) == (20, 6)
    assert (got.requests_per_s, got.output_tokens_per_s, got.tokens_per_s) == (1.0, 3.0, 13.0)
    assert (uneven.itl.mean, uneven.tpot.mean) == pytest.approx((0.11, 0.15))


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


def test_errors_are_counted_by_kind_and_answers_by_path() -> None:
    """Statuses have their number. Only completed requests have a path, and only where a server names one."""
    records = [failed(CUT), record(), *(failed(STATUS, status=status) for status in (503, 400, 503))]

    assert list(errors_by_kind(records).items()) == [("status 400", 1), ("status 503", 2), ("cut", 1)]
    records = [record(path="local"), record(path="disaggregated"), record(path="local"), failed(CUT, path="local")]

    assert list(paths(records).items()) == [("disaggregated", 1), ("local", 2)]
    assert paths([record()]) == {}


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
    assert stable([]) is None
