import os
from pathlib import Path

import pytest

from benchmarks.cpu_quota import CpuQuota


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """A folder that looks like the controller of version 1."""
    (tmp_path / "cpu.cfs_quota_us").write_text("-1")
    (tmp_path / "cgroup.procs").write_text("")
    return tmp_path


def test_version_1_takes_quota_and_period(v1: Path) -> None:
    """Two fifths of a core in periods of 5 ms."""
    with CpuQuota("g", 0.4, root=v1) as group:
        group.add(os.getpid())

        assert (v1 / "g" / "cpu.cfs_period_us").read_text() == "5000"
        assert (v1 / "g" / "cpu.cfs_quota_us").read_text() == "2000"
        assert (v1 / "g" / "cgroup.procs").read_text() == str(os.getpid())
        for file in (v1 / "g").iterdir():  # in a real one they go with the folder
            file.unlink()

    assert not (v1 / "g").exists()


def test_version_2_takes_both_in_one_file(tmp_path: Path) -> None:
    """And the controller has to be handed down first."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")
    group = CpuQuota("g", 1.5, period_us=10_000, root=tmp_path)
    group.__enter__()

    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "g" / "cpu.max").read_text() == "15000 10000"


def test_processes_that_are_left_go_back(v1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the group could not be removed."""
    monkeypatch.setattr("benchmarks.cpu_quota.EMPTY_S", 0.0)  # what stands in for a group is no empty folder
    with CpuQuota("g", 0.4, root=v1):
        (v1 / "g" / "cgroup.procs").write_text("77\n")

    assert (v1 / "cgroup.procs").read_text() == "77"


def test_the_share_of_used_up_periods(v1: Path) -> None:
    """From the kernel's counters."""
    group = CpuQuota("g", 0.4, root=v1)
    group.__enter__()
    (v1 / "g" / "cpu.stat").write_text("nr_periods 200\nnr_throttled 50\nthrottled_time 9\n")

    assert group.throttled() == 0.25
