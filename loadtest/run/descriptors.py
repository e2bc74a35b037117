"""A connection is a file descriptor, and a process may have only so many."""

import resource
from typing import Final

from baton.loadtest.errors import RunError

SPARE: Final = 64  # what the process needs besides connections


def raise_limit(connections: int | None) -> None:
    """Allow as many open files as this process may have at all; `connections`: how many will be needed, if that is known.

    Raises:
        RunError: they are more than may ever be open.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and connections is not None and connections + SPARE > hard:
        raise RunError(
            f"{connections} connections need {connections + SPARE} open files, and this process may have {hard}: "
            "raise the hard limit (ulimit -Hn), or lower --concurrency"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
