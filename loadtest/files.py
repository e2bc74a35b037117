"""Files that a command line names: read line by line, written whole."""

from collections.abc import Iterator
from pathlib import Path

from baton.loadtest.errors import RunError, UsageError


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc


def refuse_version(path: Path, found: int, ours: int) -> None:
    """Raise `UsageError` where a file is of another version than ours."""
    if found != ours:
        raise UsageError(f"{path} has schema version {found}, and this program reads {ours}")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, each with its number, from 1. Raises `UsageError`: it cannot be read."""
    lines = read(path).splitlines()
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as exc:
        raise RunError(f"cannot write {path}: {exc.strerror}") from exc
