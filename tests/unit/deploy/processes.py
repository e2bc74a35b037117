"""Helpers of the tests that watch processes."""

import time
from collections.abc import Callable
from pathlib import Path


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_naming(word: str) -> list[int]:
    """Return the pids of all processes whose command line or environment holds `word`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in text and alive(int(folder.name)):
            found.append(int(folder.name))
    return found


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
