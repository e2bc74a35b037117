"""Puts a class of ours in the place of one of vLLM's, where vLLM's own code makes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def in_place_of(module: ModuleType, name: str, ours: Any) -> Iterator[None]:
    """Let `module.name` be `ours` for a while.

    vLLM's workers construct their runner by name in the middle of `init_device`; only later versions have a method to override.
    """
    theirs = getattr(module, name)
    setattr(module, name, ours)
    try:
        yield
    finally:
        setattr(module, name, theirs)
