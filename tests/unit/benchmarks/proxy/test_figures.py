import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness import Spread
from benchmarks.proxy.__main__ import main, put
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
from benchmarks.proxy.report import markdown, to_plain
from benchmarks.proxy.session import Noise, Result
from benchmarks.proxy.stage import Plan
from benchmarks.proxy.subjects import Missing, Place, subjects
from benchmarks.usage import Memory

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


ABOUT = {"when": "2026-01-02T03:04:05+00:00", "system": "Linux x86_64", "cpus": 2}
MISSING = [Missing("vllm-router", "it cannot be had")]


def result() -> Result:
    """Two rounds of three subjects."""
    samples = {BATON: costs(100, 120), ASGI: costs(100, 100), HTTPX: costs(700, 700)}
    memory = dict.fromkeys(samples, Memory(64 << 20, 32 << 20))
    return Result(samples=samples, memory=memory, noise=Noise(0.1, 0.9, [0.01, 0.02]))


def test_the_report_says_what_was_not_reached_and_who_was_not_there() -> None:
    """A missed target, a subject that is missing with its reason, and the noise stand in the text."""
    text = markdown(Plan(rounds=2), subjects(Path("/nowhere"))[0], MISSING, result(), ABOUT)

    assert "| CPU per request: httpx-relay ÷ baton ≥ 8 | 6.42 (5.83–7.00) | **no** |" in text
    assert "| CPU per request: baton ÷ asgi-relay ≤ 1.35 | 1.10 (1.00–1.20) | yes |" in text
    assert "| CPU per chunk: baton ÷ vllm-router ≤ 1.25 | – | vllm-router was not there |" in text
    assert "- **vllm-router**: not measured, it cannot be had" in text
    assert "at most 0.020 cores" in text
    assert "| baton | 110 (100–120) |" in text


def test_the_json_holds_every_sample() -> None:
    """Scripts get samples, figures and verdicts."""
    plain = json.loads(json.dumps(to_plain(Plan(rounds=2), [], MISSING, result(), ABOUT)))

    assert len(plain["samples"][BATON]) == 2
    assert plain["figures"][BATON]["CPU per request"]["median"] == pytest.approx(110)
    assert [verdict["met"] for verdict in plain["verdicts"]][:4] == [False, False, True, None]


def test_what_people_wrote_around_the_figures_stays(tmp_path: Path) -> None:
    """A second report replaces the figures between the marks, nothing else."""
    path = tmp_path / "proxy.md"
    put("old figures", path)
    path.write_text(path.read_text() + "\nWhere the time goes.\n")

    put("new figures", path)

    assert "old figures" not in path.read_text()
    assert "new figures" in path.read_text()
    assert path.read_text().endswith("Where the time goes.\n")


def test_peers_that_are_not_installed_are_named_with_the_reason(tmp_path: Path) -> None:
    """Those that are there become subjects."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm-router").touch()

    found, missing = subjects(tmp_path)

    assert "vllm-router" in [subject.name for subject in found]
    assert [one.name for one in missing] == ["sglang-router"]
    place = Place(
        port=1,
        spare_port=2,
        prefill_url="http://p",
        decode_url="http://d",
        secret_file=tmp_path / "secret",
        collector_url="http://c",
    )
    assert all("http://p" in subject.command(place) and "http://d" in subject.command(place) for subject in found)


@pytest.mark.parametrize("flags", [["--tokens", "1"], ["--rounds", "0"], ["--only", "nobody"], ["--itl-ms", "0"]])
def test_arguments_that_measure_nothing_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and one sentence."""
    assert main(flags) == 2
    assert capsys.readouterr().err.startswith("proxy_bench: ")
