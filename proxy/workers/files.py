"""Files that are read while they are written: a reader sees the old one or the new one."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put a new file in the place of an old one, at once."""
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_bytes(content)
    fresh.replace(path)
