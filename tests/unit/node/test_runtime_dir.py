import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from baton.node.runtime_dir import owned_directory, sweep_orphans

OWNER = """
import sys, time
from baton.node.runtime_dir import owned_directory
with owned_directory("test") as path:
    (path / "secret").write_text("of this run")
    print(path, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_folder_of_a_killed_process_is_removed_by_the_next_start(temporary: Path) -> None:
    """One whose owner runs stays, as do folders of other programs."""
    (temporary / "baton-of-another-program").mkdir()
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        sweep_orphans()
        assert (path / "secret").exists()
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.communicate(timeout=30)
    assert path.exists()

    with owned_directory("test") as own:
        assert not path.exists()
        assert own.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in temporary.iterdir()] == ["baton-of-another-program"]


def test_a_file_system_without_locks_is_no_obstacle(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is made and removed as ever; only after a kill it stays."""

    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with owned_directory("test") as path, owned_directory("test"):
        assert path.exists()
    assert list(temporary.iterdir()) == []
