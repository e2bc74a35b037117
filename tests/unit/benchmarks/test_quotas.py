import os
from pathlib import Path

import pytest

from benchmarks.goodput.rig import CpuQuota


def test_version_1_takes_quota_and_period(tmp_path: Path) -> None:
    """Two fifths of a core in periods of 5 ms."""
    (tmp_path / "cpu.cfs_quota_us").write_text("-1")
    with CpuQuota("g", 0.4, root=tmp_path) as group:
        group.add(os.getpid())

        written = {file.name: file.read_text() for file in (tmp_path / "g").iterdir()}
        for file in (tmp_path / "g").iterdir():  # in a real one they go with the folder
            file.unlink()

    assert written == {"cpu.cfs_period_us": "5000", "cpu.cfs_quota_us": "2000", "cgroup.procs": str(os.getpid())}
    assert not (tmp_path / "g").exists()


def test_version_2_takes_both_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the controller has to be handed down first. Processes that are left go back, or the group could not be removed."""
    monkeypatch.setattr("benchmarks.goodput.rig.EMPTY_S", 0.0)  # what stands in for a group is no empty folder
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io\n")
    with CpuQuota("g", 1.5, root=tmp_path):
        (tmp_path / "g" / "cgroup.procs").write_text("77\n")

    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "g" / "cpu.max").read_text() == "7500 5000"
    assert (tmp_path / "cgroup.procs").read_text() == "77"
