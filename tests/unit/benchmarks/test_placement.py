import random

import pytest

from benchmarks.placement.__main__ import Goodput, main, measure
from benchmarks.placement.engine import HARDWARE, Engine, Served, Timeline
from benchmarks.placement.simulation import simulate
from benchmarks.placement.traffic import MIXES, Request, plan_traffic


@pytest.mark.parametrize(
    ("mix", "hardware", "utilisation", "seconds"),
    [
        ("agentic", "cpu", 0.6, 60.0),
        ("bursty", "cpu", 0.6, 60.0),
        ("shared", "cpu", 0.75, 60.0),
        ("chat", "cpu", 0.75, 60.0),
        ("chat", "gpu", 5.0, 20.0),
    ],
)
def test_the_choice_by_cost_is_hardly_worse_than_either_other_setup(
    mix: str, hardware: str, utilisation: float, seconds: float
) -> None:
    """It has nine tenths of the goodput of the better of them, or more. Time is virtual: the machine makes no difference."""
    assert measure(mix, hardware, utilisation, seeds=2, seconds=seconds).ratio >= 0.9


@pytest.mark.parametrize("mix", MIXES)
def test_a_seed_gives_the_same_traffic_again(mix: str) -> None:
    """Beginnings and prompts of all turns, so that all setups get the same; another seed gives others."""
    one, same, other = (plan_traffic(mix, 0.5, 40.0, random.Random(seed)) for seed in (3, 3, 4))

    assert one == same
    assert one[-1] != other[-1]


def test_a_run_is_the_same_again() -> None:
    """Nothing in it depends on the clock; each request is counted once."""
    first, again = (
        simulate("baton", "agentic", HARDWARE["cpu"], utilisation=0.6, seconds=40.0, seed=1) for _ in range(2)
    )

    assert first == again
    assert first.requests % 6 == 0


def serve(engine: Engine, timeline: Timeline, request: Request) -> Served:
    served = Served(request, engine, engine)
    engine.add_prompt(served)
    timeline.run()
    return served


def test_an_engine_computes_what_a_conversation_has_not_had() -> None:
    """All of the first turn; of the second one what is behind the first answer, whose last token has no KV yet."""
    timeline, cpu = Timeline(), HARDWARE["cpu"]
    engine = Engine(cpu, timeline)
    first = serve(engine, timeline, Request([1] * 300, 10, 1, 0))
    second = serve(engine, timeline, Request([1] * 400, 10, 1, 310))

    assert first.ttft_s == pytest.approx(cpu.prompt_s(300) + 1.9 * cpu.step_s)
    assert second.ttft_s == pytest.approx(cpu.prompt_s(400, 309) + 1.9 * cpu.step_s)
    assert first.tpot_s == pytest.approx(cpu.idle_tpot_s)


def test_a_ratio_is_to_the_better_of_the_two_others() -> None:
    """Where neither of them meets an SLO, there is nothing to be worse than."""
    assert Goodput(0.8, 0.5, 0.6).ratio == pytest.approx(0.75)
    assert Goodput(0.0, 0.0, 0.0).ratio == 1.0


def test_too_little_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """In 30 seconds not every kind of request has come."""
    with pytest.raises(SystemExit):
        main(["--seconds", "30"])
    assert "--seconds 40" in capsys.readouterr().err
