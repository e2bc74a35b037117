import pytest

from baton.loadtest.plan.calibration import Calibration, Decode, Prefill
from baton.loadtest.plan.simulate import Outcome, Shape
from baton.loadtest.run import build
from baton.loadtest.run.arguments import parse
from baton.loadtest.run.loops import Open
from benchmarks.plan_check.__main__ import load, load_argv, parser, rate_per_s
from benchmarks.plan_check.comparison import Comparison, Noise, compare
from benchmarks.usage import OtherCpu, Quiet
from tests.unit.loadtest.records import record

CALIBRATION = Calibration(
    prefill=Prefill(step_s=0.02, token_s=4e-4), decode=Decode(step_s=0.02, sequence_s=0.004), overhead_s=0.03
)


def comparison(simulated: float = 0.5, runs: tuple[float, ...] = (0.4, 0.9, 0.5)) -> Comparison:
    """TTFTs as given; TPOT is 20 ms everywhere."""
    made = Outcome([record(ttft_s=simulated)], 1.0, 0.7, 0.3, [0], [0])
    measured = [[record(ttft_s=ttft_s)] for ttft_s in runs]
    return compare(Shape(2, 1), made, measured, Noise(0.1, 0.001, stolen_cores=0.05, repeated=2))


def test_the_median_of_the_runs_is_what_counts() -> None:
    """Not their mean: one disturbed run changes nothing."""
    found = comparison()

    assert tuple(found.measured) == pytest.approx((0.5, 0.02))
    assert found.deviation == pytest.approx((0.0, 0.0))
    assert found.right


@pytest.mark.parametrize(("simulated", "right"), [(0.58, False), (0.57, True), (0.43, True), (0.42, False)])
def test_more_than_fifteen_per_cent_is_wrong(simulated: float, right: bool) -> None:
    """In both directions."""
    assert comparison(simulated).right is right


def test_the_simulation_sees_what_is_sent() -> None:
    """The same number of requests, instants and lengths."""
    given = parser().parse_args([])
    asked = parse(["--url", "http://a:1", *load_argv(given, 3.0)], {})
    dataset = build.source(asked)
    (stage,) = build.stages(asked, dataset)
    assert isinstance(stage.load, Open)

    simulated = load(given, 3.0)

    assert [one.due_s for one in simulated] == stage.load.due_s
    assert simulated[5].input_tokens == len(dataset.script(5).first().prompt)
    assert len({one.input_tokens for one in simulated}) > 20


def test_the_rate_keeps_the_prefill_node_as_busy_as_asked() -> None:
    """0.02 s and 0.4 ms a token: about 0.18 s for 400 tokens."""
    given = parser().parse_args(["--utilisation", "0.6"])

    assert rate_per_s(given, CALIBRATION) == pytest.approx(0.6 / 0.18, rel=0.1)


class Host(OtherCpu):
    """Takes from a measurement what it is told to."""

    def __init__(self, *stolen_cores: float) -> None:
        """One figure for each measurement."""
        self._stolen_cores = list(stolen_cores)

    def restart(self) -> None:
        """Begin."""

    def stolen_cores(self) -> float:
        """What was taken."""
        return self._stolen_cores.pop(0)


async def repeated(host: Host, tries: int) -> tuple[int, list[str], Quiet]:
    """Measure twice; which measurement counted the second time, what happened, and what is told."""
    quiet, happened = Quiet(host, 0.1, tries), []

    async def once() -> int:
        happened.append("measured")
        return len(happened)

    await quiet.measure(once)
    return await quiet.measure(once, lambda: happened.append("forgotten")), happened, quiet


async def test_what_the_host_disturbed_is_measured_again() -> None:
    """And forgotten; the report says how often."""
    counted, happened, quiet = await repeated(Host(0.02, 0.5, 0.2, 0.05), tries=4)

    assert happened == ["measured", "measured", "forgotten", "measured", "forgotten", "measured"]
    assert (counted, quiet.repeated, quiet.stolen_cores) == (6, 2, 0.05)


async def test_a_host_that_never_rests_is_told_of() -> None:
    """The last try counts."""
    counted, happened, quiet = await repeated(Host(0.3, 0.4, 0.5, 0.6), tries=2)

    assert happened == ["measured", "measured", "measured", "forgotten", "measured"]
    assert (counted, quiet.repeated, quiet.stolen_cores) == (5, 2, 0.6)
