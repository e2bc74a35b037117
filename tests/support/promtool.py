"""Prometheus' own checker: this machine's, else the one in Debian's package, which is unpacked and not installed."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support.registry import from_debian


@cache
def promtool() -> str:
    return shutil.which("promtool") or str(from_debian("prometheus", "usr/bin/promtool"))


def complaints(*arguments: str | Path) -> str:
    """Run it; return what it said, or nothing if it was content."""
    done = _run(*arguments)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def said(*arguments: str | Path) -> str:
    return _run(*arguments).stdout


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool(), *arguments], capture_output=True, text=True, check=False, timeout=60)
