"""Where and with what a run was made. No host name and no secret: reports are shown around."""

import argparse
import os
import platform
import resource
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from baton.contracts.installed import installed_version
from baton.loadtest.errors import RunError

SPARE: Final = 64  # open files that the process needs besides connections
_DERIVED: Final = ("slos_ms", "more")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    return {
        "baton": installed_version("baton-serve") or "unknown",
        "python": platform.python_version(),
        "uvloop": installed_version("uvloop"),
        "httptools": installed_version("httptools"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
    }


def shown(given: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments as they may be shown: whether there was a key, and no header's value."""
    plain = {name: _plain(value) for name, value in vars(given).items() if name not in _DERIVED}
    return {**plain, "api_key": bool(given.api_key), "header": [name for name, _ in given.header]}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return "inf" if value == float("inf") else value


def raise_limit(connections: int | None) -> None:
    """Allow as many open files as there may be. Raises `RunError`: `connections`, if known, are more than that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and connections is not None and connections + SPARE > hard:
        raise RunError(
            f"{connections} connections need {connections + SPARE} open files, and this process may have {hard}: "
            "raise the hard limit (ulimit -Hn), or lower --concurrency"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
