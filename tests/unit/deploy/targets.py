"""What the fork server runs in its tests: cheap, and telling about itself."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IMPORTED_AT_S: list[float] = []


def prepare() -> None:
    """Stand in for a long import; children see what it left."""
    IMPORTED_AT_S.append(time.monotonic())
    tempfile.gettempdir()  # which Python remembers


def fail_to_prepare() -> None:
    """Stand in for an import that fails."""
    raise RuntimeError("the import failed on purpose")


def prepare_for_ever() -> None:
    """Stand in for an import that takes longer than anybody waits."""
    time.sleep(600)


def report(path: str) -> int:
    """Write what a child can see of itself to `path`, as JSON."""
    seen = {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "environ": dict(os.environ),
        "prepared": len(IMPORTED_AT_S),
        "temporary": tempfile.gettempdir(),
        "descriptors": sorted(filter(None, map(_link, Path("/proc/self/fd").iterdir()))),
    }
    Path(path).write_text(json.dumps(seen))
    return 0


def leave(code: int) -> int:
    """Say something on both streams and exit."""
    print("to standard output")
    print("to standard error", file=sys.stderr)
    return code


def raise_error() -> None:
    """Die of an exception."""
    raise RuntimeError("broken on purpose")


def sleep(path: str, ignore_term: bool = False) -> None:
    """Start a grandchild, write both pids to `path`, and sleep."""
    if ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen(["sleep", "600"])
    file = Path(path)
    file.with_suffix(".tmp").write_text(f"{os.getpid()} {grandchild.pid}")
    file.with_suffix(".tmp").rename(file)
    time.sleep(600)


def _link(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:  # the one that the listing itself used
        return ""
