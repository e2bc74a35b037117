import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.mock_engine.settings import Counts
from benchmarks.harness import Spread
from benchmarks.proxy import __main__ as proxy_bench
from benchmarks.proxy import stage
from benchmarks.proxy.figures import (
    ASGI,
    BATON,
    HTTPX,
    METRICS,
    REQUEST,
    Sample,
    Target,
    verdict_of,
)
from benchmarks.proxy.report import markdown, to_plain
from benchmarks.proxy.session import Noise, Result
from benchmarks.proxy.stage import Plan
from benchmarks.proxy.subjects import Missing, subjects
from benchmarks.usage import Memory

SAMPLE = Sample(
    short_requests=1000,
    short_cpu_s=0.2,
    single_first_token_s=0.0012,
    direct_first_token_s=0.0008,
    starts_s=0.04,
    last_start_s=0.06,
    starts_cpu_s=0.005,
    chunks=100,
    streams_cpu_s=0.007,
    streams_s=2.2,
    direct_streams_s=2.0,
)


def costs(*request_us: float) -> list[Sample]:
    """Rounds whose requests cost so much."""
    return [replace(SAMPLE, short_cpu_s=us * 1e-6 * SAMPLE.short_requests) for us in request_us]


def test_the_figures_of_a_sample() -> None:
    """CPU per request and per chunk, latency above the direct one, stretch."""
    assert [round(metric.of(SAMPLE), 3) for metric in METRICS] == [200, 20, 400, 40, 1.1]


def test_what_short_streams_have_is_no_cost_of_chunks() -> None:
    assert Plan(streams=10, tokens=12).further_chunks == 100
    with pytest.raises(UsageError, match="--tokens is at least 3"):
        proxy_bench._plan(proxy_bench._parser().parse_args(["--tokens", "2"]))


BOUND = Target(REQUEST, ASGI, 1.35)
FACTOR = Target(REQUEST, HTTPX, 8, by_factor=True)


@pytest.mark.parametrize(
    ("target", "baton_us", "ratio", "met"),
    [(BOUND, 130, 1.3, True), (BOUND, 140, 1.4, False), (FACTOR, 100, 8, True), (FACTOR, 128, 6.25, False)],
)
def test_a_target_is_a_bound_or_a_factor(target: Target, baton_us: float, ratio: float, met: bool) -> None:
    """Baton ÷ other ≤ 1.35, or other ÷ Baton ≥ 8. Against one that was not there it is neither met nor missed."""
    verdict = verdict_of(target, {BATON: costs(baton_us), ASGI: costs(100), HTTPX: costs(800)})

    assert verdict.met is met
    assert verdict.ratio == pytest.approx(Spread(*[ratio] * 3))
    assert verdict_of(target, {BATON: costs(baton_us)})[1:] == (None, None)


ABOUT = {"when": "2026-01-02T03:04:05+00:00", "system": "Linux x86_64", "cpus": 2}
MISSING = [Missing("vllm-router", "it cannot be had")]


def result() -> Result:
    """Two rounds of three subjects."""
    samples = {BATON: costs(100, 120), ASGI: costs(100, 100), HTTPX: costs(700, 700)}
    memory = dict.fromkeys(samples, Memory(64 << 20, 32 << 20))
    noise, chosen = Noise(0.1, 0.9, [0.01, 0.02]), subjects(Path("/nowhere"))[0]
    return Result(plan=Plan(rounds=2), subjects=chosen, samples=samples, memory=memory, noise=noise)


def test_the_report_says_what_was_not_reached_and_who_was_not_there() -> None:
    """A missed target, a subject that is missing with its reason, and the noise stand in the text; JSON has every sample."""
    text = markdown(result(), MISSING, ABOUT)

    assert "| CPU per request: httpx-relay ÷ baton ≥ 8 | 6.42 (5.83–7.00) | **no** |" in text
    assert "| CPU per request: baton ÷ asgi-relay ≤ 1.35 | 1.10 (1.00–1.20) | yes |" in text
    assert "| CPU per chunk: baton ÷ vllm-router ≤ 1.25 | – | vllm-router was not there |" in text
    assert "- **vllm-router**: not measured, it cannot be had" in text
    assert "at most 0.020 cores" in text
    assert "| baton | 110 (100–120) |" in text
    plain = json.loads(json.dumps(to_plain(result(), MISSING, ABOUT)))

    assert len(plain["samples"][BATON]) == 2
    assert plain["figures"][BATON]["CPU per request"]["median"] == pytest.approx(110)
    assert [verdict["met"] for verdict in plain["verdicts"]][:4] == [False, False, True, None]


async def test_a_session_that_loses_hand_overs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that answers without the prefill node gives no figure: the counts of the mocks do not match."""
    monkeypatch.setattr(stage, "SETTLE_S", 0.0)
    nothing, done = Counts(), Counts(requests=3, handed_over=3, completed=3)

    async def measured(prefill: Counts, decode: Counts) -> None:
        async def counts() -> tuple[Counts, Counts]:
            return prefill, decode

        pair: Any = SimpleNamespace(counts=counts)
        await stage.expect(pair, (nothing, nothing), 3, "peer")

    await measured(done, done)
    for wrong in (nothing, Counts(requests=3, alone=3, completed=3), Counts(requests=4, handed_over=4, completed=4)):
        for pair in ((wrong, done), (done, wrong)):
            with pytest.raises(RunError, match="peer: 3 requests were sent, the mocks counted"):
                await measured(*pair)


def test_the_process_that_loads_a_proxy_imports_no_torch() -> None:
    """Its objects made a full collection of 0.2 s, in which no answer was read."""
    look = "import benchmarks.proxy.__main__, sys; sys.exit('torch' in sys.modules)"

    subprocess.run([sys.executable, "-c", look], check=True, timeout=60)
