import os
from pathlib import Path

import pytest

from benchmarks.goodput.rig import CpuQuota, QuotaError, find_root


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


def test_version_2_takes_both_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the controller has to be handed down first. Processes that are left go back, or the group could not be removed."""
    monkeypatch.setattr("benchmarks.goodput.rig.EMPTY_S", 0.0)  # what stands in for a group is no empty folder
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
