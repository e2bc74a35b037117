"""Folders in the user's cache, for what is fetched or made when it is first wanted."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache() -> Path:
    """Return the folder that all of them lie in."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made whole if it is not there; two processes may make it at once."""
    folder = cache() / name
    if not folder.exists():
        making = folder.with_name(f"{name}.{os.getpid()}")
        try:
            make(making)
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder
