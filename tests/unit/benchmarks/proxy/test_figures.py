from dataclasses import replace

import pytest

from benchmarks.harness import Spread
from benchmarks.proxy.figures import (
    ADDED,
    ASGI,
    BATON,
    CHUNK,
    HTTPX,
    METRICS,
    REQUEST,
    STRETCH,
    Sample,
    Target,
    ratio,
    verdict_of,
)

SAMPLE = Sample(
    short_requests=1000,
    short_cpu_s=0.2,
    single_first_token_s=0.0012,
    direct_first_token_s=0.0008,
    streams=10,
    cold_starts_s=0.05,
    starts_s=0.04,
    last_start_s=0.06,
    starts_cpu_s=0.005,
    chunks=110,
    streams_cpu_s=0.007,
    streams_s=2.2,
    direct_streams_s=2.0,
)


def costs(*request_us: float) -> list[Sample]:
    """Rounds whose requests cost so much."""
    return [replace(SAMPLE, short_cpu_s=us * 1e-6 * SAMPLE.short_requests) for us in request_us]


def test_a_chunk_costs_what_long_streams_cost_more_than_short_ones() -> None:
    """The first chunk of each stream belongs to its request: 2 ms over 100 chunks are 20 µs."""
    assert CHUNK.of(SAMPLE) == pytest.approx(20)


def test_the_other_figures_of_a_sample() -> None:
    """CPU per request, latency above the direct one, stretch over the direct time."""
    assert REQUEST.of(SAMPLE) == pytest.approx(200)
    assert ADDED.of(SAMPLE) == pytest.approx(400)
    assert STRETCH.of(SAMPLE) == pytest.approx(1.1)
    assert [round(metric.of(SAMPLE), 3) for metric in METRICS] == [200, 20, 400, 40, 50, 1.1]


def test_a_ratio_is_taken_round_by_round() -> None:
    """What doubles everything in one round changes no ratio."""
    found = ratio(REQUEST, costs(100, 200, 150), costs(50, 100, 100))

    assert found == pytest.approx(Spread(2.0, 1.5, 2.0))


@pytest.mark.parametrize(("baton_us", "met"), [(100, True), (130, True), (140, False)])
def test_a_bound_is_met_up_to_its_value(baton_us: float, met: bool) -> None:
    """Baton ÷ other ≤ 1.35."""
    samples = {BATON: costs(baton_us), ASGI: costs(100)}

    assert verdict_of(Target(metric=REQUEST, other=ASGI, at_most=1.35), samples).met is met


@pytest.mark.parametrize(("baton_us", "met"), [(100, True), (130, False)])
def test_a_factor_is_the_others_cost_over_ours(baton_us: float, met: bool) -> None:
    """Other ÷ Baton ≥ 8."""
    verdict = verdict_of(Target(metric=REQUEST, other=HTTPX, at_least=8), {BATON: costs(baton_us), HTTPX: costs(800)})

    assert verdict.met is met
    assert verdict.ratio == pytest.approx(Spread(*[800 / baton_us] * 3))


def test_a_target_against_one_that_was_not_there_is_open() -> None:
    """Neither met nor missed."""
    verdict = verdict_of(Target(metric=REQUEST, other=ASGI, at_most=1.35), {BATON: costs(1)})

    assert (verdict.ratio, verdict.met) == (None, None)
