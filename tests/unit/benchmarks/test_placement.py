import pytest

from benchmarks.placement.__main__ import measure
from benchmarks.placement.engine import HARDWARE, Engine, Served, Timeline
from benchmarks.placement.simulation import simulate
from benchmarks.placement.traffic import Request


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
    assert measure(mix, hardware, utilisation, seeds=1, seconds=seconds).ratio >= 0.9


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
