"""Puts something of ours in the place of vLLM's, where vLLM's own code uses it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def in_place_of(holder: Any, name: str, ours: Any) -> Iterator[None]:
    """Let `holder.name` be `ours` for a while.

    vLLM constructs its runner (before 0.32, and on a CPU) and its output by name, in the middle of a method of its own.
    """
    theirs = getattr(holder, name)
    setattr(holder, name, ours)
    try:
        yield
    finally:
        setattr(holder, name, theirs)
