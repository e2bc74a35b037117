import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from baton.loadtest.compare.command import BETTER, SAME, TOO_FEW, WORSE, compare, judge, main, obstacles
from baton.loadtest.compare.resample import METRICS, Interval, Slices, Weighted, differences
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.measures.percentile import percentile
from baton.loadtest.measures.record import TIMEOUT
from baton.loadtest.result import Result, write_result
from tests.unit.loadtest.pages import assert_is_sound
from tests.unit.loadtest.records import failed, record
from tests.unit.loadtest.results import result, stage


class Values:
    def __init__(self, values: Sequence[float]) -> None:
        self._weighted = Weighted([(value, at) for at, value in enumerate(values)])
        self.size = len(values)

    def estimates(self, counts: Sequence[int]) -> dict[str, float | None]:
        return {"mean": self._weighted.mean(counts), "median": self._weighted.percentile(counts, 50)}


@pytest.mark.parametrize("percent", [0, 10, 50, 75, 99, 100])
def test_weighted_figures_are_those_of_the_repeated_values(percent: float) -> None:
    """A unit that was picked twice gives all its values twice, one that was not gives none."""
    values = [
        (float(value), unit) for unit, several in enumerate(([5, 1], [3], [9, 2, 2], [], [7])) for value in several
    ]
    counts = [2, 0, 1, 5, 3]
    repeated = sorted(value for value, unit in values for _ in range(counts[unit]))

    weighted = Weighted(values)

    assert weighted.percentile(counts, percent) == pytest.approx(percentile(repeated, percent))
    assert weighted.mean(counts) == pytest.approx(fmean(repeated))
    assert weighted.mean([0] * 5) is weighted.percentile([0] * 5, percent) is None


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Of 150 pairs of runs that differ by 1 on average, nine in ten at 90 %; the interval is for the difference."""
    rng, held = random.Random(7), Counter[str]()
    for trial in range(150):
        a = Values([rng.gauss(10, 2) for _ in range(25)])
        b = Values([rng.gauss(11, 3) for _ in range(25)])
        for name, found in differences(a, b, resamples=80, seed=trial, confidence=0.9).items():
            held[name] += found.difference.low <= 1 <= found.difference.high

    assert 0.83 <= held["mean"] / 150 <= 0.97
    assert 0.83 <= held["median"] / 150 <= 0.97


def test_a_seed_gives_the_same_intervals_again() -> None:
    """And both the difference and the ratio are of b against a; there is no ratio to 0, which shares often are."""
    a, b = Values([1.0, 2.0, 3.0]), Values([2.0, 4.0, 6.0])
    one, same, other = (differences(a, b, resamples=50, seed=seed, confidence=0.9) for seed in (1, 1, 2))
    nothing = differences(Values([0.0, 0.0]), Values([1.0, 1.0]), resamples=20, seed=0, confidence=0.9)["mean"]

    assert one == same
    assert one["mean"].difference != other["mean"].difference
    assert (one["mean"].a, one["mean"].b) == (2.0, 4.0)
    assert (nothing.ratio, nothing.difference) == (None, Interval(1.0, 1.0))


def drawn(
    seed: int, *, ttft_s: float = 0.1, gap_s: float = 0.02, n: int = 150, failures: int = 0, **more: Any
) -> Result:
    """A run whose times scatter by a fifth."""
    rng = random.Random(seed)
    records = [
        record(0.01 * at, ttft_s * rng.uniform(0.8, 1.2), tuple(gap_s * rng.uniform(0.8, 1.2) for _ in range(4)))
        for at in range(n)
    ]
    return result(stage([*records, *(failed(TIMEOUT) for _ in range(failures))]), **more)


def verdicts(a: Result, b: Result) -> dict[str, str]:
    found = compare(a, b, resamples=200, seed=0, confidence=0.95)
    return {finding.metric.name: finding.verdict for finding in found}


def test_what_is_slower_is_worse_and_what_is_not_is_not() -> None:
    """TTFT is a tenth longer; gaps are drawn from the same distribution."""
    got = verdicts(drawn(1), drawn(2, ttft_s=0.11))

    assert got["mean TTFT"] == got["median TTFT"] == got["mean E2EL"] == WORSE
    assert got["mean TPOT"] == got["mean ITL"] == SAME
    assert got["failed"] == SAME


def test_failures_and_broken_promises_are_judged() -> None:
    """More failed ones are worse, fewer within their SLOs too; different SLOs are not compared."""
    slos: dict[str, Any] = {"slos_ms": {"ttft": 100.0}}
    got = verdicts(drawn(1, **slos), drawn(1, failures=150, **slos))

    assert (got["failed"], got["within SLOs"]) == (WORSE, WORSE)
    assert "within SLOs" not in verdicts(drawn(1, slos_ms={"ttft": 1.0}), drawn(1, slos_ms={"ttft": 2.0}))


def test_what_was_due_and_never_sent_kept_no_promise() -> None:
    """It waited longest. It did not fail, and adds nothing to how many were measured."""
    slos: dict[str, Any] = {"slos_ms": {"ttft": 1000.0}}
    records, few = drawn(1).stages[0].records, drawn(1, n=5).stages[0].records
    a, b = result(stage(records), **slos), result(stage(records, unsent=150), **slos)

    found = {each.metric.name: each for each in compare(a, b, resamples=200, seed=0, confidence=0.95)}

    assert (found["within SLOs"].found.a, found["within SLOs"].found.b) == (1.0, 0.5)
    assert (found["within SLOs"].verdict, found["failed"].verdict, found["mean TTFT"].verdict) == (WORSE, SAME, SAME)
    assert verdicts(a, result(stage(few, unsent=150), **slos))["failed"] == TOO_FEW


def test_too_few_values_get_no_verdict() -> None:
    """A P99 of 20 requests is its largest value, and 5 requests are an anecdote."""
    few = verdicts(drawn(1, n=20), drawn(2, n=20, ttft_s=0.2))

    assert (few["P99 TTFT"], few["mean TTFT"]) == (TOO_FEW, WORSE)
    assert verdicts(drawn(1, n=5), drawn(2, n=5, ttft_s=0.2))["mean TTFT"] == TOO_FEW


@pytest.mark.parametrize(
    ("interval", "lower", "higher"),
    [((-2, -1), BETTER, WORSE), ((1, 2), WORSE, BETTER), ((-1, 1), SAME, SAME), ((0, 1), SAME, SAME)],
)
def test_verdicts_know_which_way_is_up(interval: tuple[float, float], lower: str, higher: str) -> None:
    """Latency falls when it gets better, throughput rises."""
    ttft, throughput = METRICS[0], next(metric for metric in METRICS if not metric.lower_is_better)

    assert (judge(Interval(*interval), ttft), judge(Interval(*interval), throughput)) == (lower, higher)


def test_throughput_is_what_the_slices_add_up_to() -> None:
    """Every slice once: the run's own figure."""
    found = Slices(stage()).estimates([1] * 20)

    assert found == {"request throughput": pytest.approx(5.0), "output throughput": pytest.approx(15.0)}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (drawn(1, workload={"dataset": "multi-turn", "model": "m"}), "dataset is random in A and multi-turn in B"),
        (result(stage(load={"loop": "closed", "concurrency": 8})), "concurrency is 2 in A and 8 in B"),
        (result(stage(), stage()), "A has 1 stages and B has 2"),
        (result(stage([record(input_tokens=11)] * 20)), "prompts of 2 users were 10.0 tokens in A and 11.0 in B"),
        (result(stage([record(output_tokens=4)] * 20)), "answers of 2 users were 5.0 tokens in A and 4.0 in B"),
        (result(stage([record()] * 19, unsent=1)), "of 2 users 0.0% of what was due was never sent in A and 5.0% in B"),
        (result(stage([failed(TIMEOUT)])), "no request of 2 users was completed"),
    ],
)
def test_runs_of_different_work_are_not(other: Result, words: str) -> None:
    """With the reason. Different seeds, servers and machines are what one wants to compare."""
    assert words in "; ".join(obstacles(drawn(1), other))
    assert obstacles(drawn(1), result(stage(drawn(2).stages[0].records, unsent=2))) == []
    assert obstacles(drawn(1), drawn(2, arguments={"url": "http://other", "seed": 9}, environment={"cpus": 64})) == []


def stored(tmp_path: Path, name: str, run: Result) -> str:
    (tmp_path / name).mkdir()
    write_result(run, tmp_path / name)
    return str(tmp_path / name)


def test_the_command_prints_a_table_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each metric, with both intervals. On one page: distributions of single stages, Pareto fronts of sweeps."""
    one = [stored(tmp_path, "a", drawn(1)), stored(tmp_path, "b", drawn(2, ttft_s=0.11))]
    sweep = result(drawn(1).stages[0], stage(label="4 users", nodes=[]))
    several = [stored(tmp_path, name, sweep) for name in ("c", "d")]
    page, other, rows = tmp_path / "one.html", tmp_path / "several.html", tmp_path / "c.json"

    assert main([*one, "--json", str(rows), "--html", str(page), "--resamples", "100"]) == 0

    out = capsys.readouterr().out
    assert "mean TTFT (ms)" in out
    assert "worse" in out
    (ttft,) = (row for row in json.loads(rows.read_text())["metrics"] if row["metric"] == "mean TTFT")
    assert ttft["verdict"] == WORSE
    assert ttft["difference"][0] <= ttft["b"] - ttft["a"] <= ttft["difference"][1]
    assert 1 < ttft["ratio"][0] < ttft["ratio"][1] < 1.2
    assert main([*several, "--html", str(other), "--resamples", "20"]) == 0
    for file, pictures in ((page, 4), (other, 2)):
        assert_is_sound(file.read_text())
        assert file.read_text().count('role="img"') == pictures
    assert "B P99 TTFT" in other.read_text()


def test_incomparable_runs_are_refused_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Forced, the reason stands beside the figures. Runs with other stages have nothing to pair."""
    a = stored(tmp_path, "a", drawn(1))
    b = stored(tmp_path, "b", drawn(1, workload={"dataset": "trace", "model": "m"}))

    with pytest.raises(RunError, match="cannot be compared: the work differs: dataset is random in A and trace in B"):
        main([a, b])
    assert main([a, b, "--force", "--resamples", "20"]) == 0
    assert "Compared by force, although the work differs" in capsys.readouterr().out
    with pytest.raises(UsageError, match="nothing to pair"):
        main([a, stored(tmp_path, "c", result(stage(), stage())), "--force"])
