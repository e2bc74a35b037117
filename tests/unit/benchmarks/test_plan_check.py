import os
from pathlib import Path

import pytest

from baton.loadtest.plan.calibration import Calibration, Decode, Prefill
from baton.loadtest.plan.simulate import Outcome, Shape
from benchmarks.plan_check.__main__ import parser, rate_per_s
from benchmarks.plan_check.comparison import Comparison, Noise, compare
from benchmarks.plan_check.rig import CpuQuota, QuotaError, find_root
from benchmarks.usage import OtherCpu, Quiet
from tests.unit.loadtest.records import record


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """A folder that looks like the controller of version 1."""
    (tmp_path / "cpu.cfs_quota_us").write_text("-1")
    (tmp_path / "cgroup.procs").write_text("")
    return tmp_path


def test_version_1_takes_quota_and_period(v1: Path) -> None:
    """Two fifths of a core in periods of 5 ms; the kernel counts how many of them were used up."""
    with CpuQuota("g", 0.4, root=v1) as group:
        group.add(os.getpid())
        (v1 / "g" / "cpu.stat").write_text("nr_periods 200\nnr_throttled 50\nthrottled_time 9\n")

        assert (v1 / "g" / "cpu.cfs_period_us").read_text() == "5000"
        assert (v1 / "g" / "cpu.cfs_quota_us").read_text() == "2000"
        assert (v1 / "g" / "cgroup.procs").read_text() == str(os.getpid())
        assert group.throttled() == 0.25
        for file in (v1 / "g").iterdir():  # in a real one they go with the folder
            file.unlink()

    assert not (v1 / "g").exists()


def test_version_2_takes_both_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the controller has to be handed down first. Processes that are left go back, or the group could not be removed."""
    monkeypatch.setattr("benchmarks.plan_check.rig.EMPTY_S", 0.0)  # what stands in for a group is no empty folder
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")
    with CpuQuota("g", 1.5, root=tmp_path):
        (tmp_path / "g" / "cgroup.procs").write_text("77\n")

    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "g" / "cpu.max").read_text() == "7500 5000"
    assert (tmp_path / "cgroup.procs").read_text() == "77"


def test_the_root_is_found(v1: Path, tmp_path: Path) -> None:
    """Version 1 where it is mounted, else 2 with the controller, else an error that says what is needed."""
    two = tmp_path / "two"
    two.mkdir()
    with pytest.raises(QuotaError, match="quotas need root, and cgroups v1 or v2"):
        find_root(two, two)
    (two / "cgroup.controllers").write_text("cpuset\n")
    with pytest.raises(QuotaError):
        find_root(two, two)
    (two / "cgroup.controllers").write_text("cpuset cpu\n")

    assert find_root(v1, two) == v1
    assert find_root(two, two) == two
    with (
        pytest.raises(QuotaError, match=r"cannot make a CPU quota at .*/nowhere/g"),
        CpuQuota("g", 0.4, root=tmp_path / "nowhere"),
    ):
        pass


CALIBRATION = Calibration(
    prefill=Prefill(step_s=0.02, token_s=4e-4), decode=Decode(step_s=0.02, sequence_s=0.004), overhead_s=0.03
)


def comparison(simulated: float = 0.5, runs: tuple[float, ...] = (0.4, 0.9, 0.5)) -> Comparison:
    """TTFTs as given; TPOT is 20 ms everywhere."""
    made = Outcome([record(ttft_s=simulated)], 1.0, 0.7, 0.3, [0], [0])
    measured = [[record(ttft_s=ttft_s)] for ttft_s in runs]
    return compare(Shape(2, 1), made, measured, Noise(0.1, 0.001, stolen_cores=0.05, repeated=2))


@pytest.mark.parametrize(("simulated", "right"), [(0.58, False), (0.57, True), (0.43, True), (0.42, False)])
def test_more_than_fifteen_per_cent_is_wrong(simulated: float, right: bool) -> None:
    """Of the median of the runs, not of their mean: one disturbed run changes nothing."""
    assert comparison(simulated).right is right
    assert tuple(comparison().measured) == pytest.approx((0.5, 0.02))
    assert comparison().deviation == pytest.approx((0.0, 0.0))


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
        return self._stolen_cores.pop(0)


@pytest.mark.parametrize(
    ("tries", "stolen_cores", "expected", "told"),
    [(4, (0.5, 0.2, 0.05), "m-m-m", (2, 0.05)), (2, (0.5, 0.6), "m-m", (1, 0.6))],
)
async def test_what_the_host_disturbed_is_forgotten_and_measured_again(
    tries: int, stolen_cores: tuple[float, ...], expected: str, told: tuple[int, float]
) -> None:
    """The last try counts, however it was; the report says how often."""
    quiet, happened = Quiet(Host(*stolen_cores), 0.1, tries), []

    async def once() -> int:
        happened.append("m")
        return len(happened)

    assert await quiet.measure(once, lambda: happened.append("-")) == len(expected)
    assert "".join(happened) == expected
    assert (quiet.repeated, quiet.stolen_cores) == told
