"""How many files the process may have open, divided among requests and connections. Pure but for asking the limit.

    limit   ├─ own ─┼─ 3 for each request ─┼─ 1 for each connection without one ─┤

A request costs three at most: the client's connection and one to each node. A request above the budget is refused, a
connection above it is not accepted for the moment.
"""

import resource
from typing import Final, NamedTuple

OF_A_REQUEST: Final = 3
_OWN: Final = 48  # listening, logs, event loop, name lookups, calls of operators
_OF_A_MEMBER: Final = 2  # a probe, and a cancel


class Budget(NamedTuple):
    """What a limit allows."""

    requests: int  # at once, inside or waiting
    connections: int  # from clients, with a request or without


def budget(limit: int, members: int = 0) -> Budget:
    """Divide a limit; even a hopeless one leaves something to each. Members take from what nodes are asked with."""
    left = max(limit - _OWN, OF_A_REQUEST + 1)
    requests = left // (OF_A_REQUEST + 1)
    connections = left - (OF_A_REQUEST - 1) * requests
    return Budget(requests=max(1, requests - members * _OF_A_MEMBER // (OF_A_REQUEST - 1)), connections=connections)


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def raise_limit() -> None:
    """Allow this process as many as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems have a lower limit of their own
            return
