"""Files with a JSON value on each line."""

from collections.abc import Iterator
from pathlib import Path

from baton.loadtest.errors import UsageError


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, each with its number, from 1.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
