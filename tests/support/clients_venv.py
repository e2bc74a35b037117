"""Clients of other people that the tests run against us."""

from pathlib import Path

from tests.support.pinned_venv import pinned_venv


def clients_python() -> Path:
    """Return the interpreter of their environment; see `pinned_venv`."""
    return pinned_venv("clients") / "bin" / "python"
