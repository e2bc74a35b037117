"""How many files the process may have open, divided among connections. Pure but for asking the limit.

    limit   ├─ own ─┼─ from clients, with a request or without ─┼─ to nodes ─┼─ to nodes, for probes and cancels ─┤

A client's connection and one to each node is what a request costs at most. A request that might need more than there
may be to nodes is refused (`connection_budget.py`); a client's connection too many is not accepted for the moment.
"""

import resource
from contextlib import suppress
from typing import Final, NamedTuple

_OWN: Final = 48  # listening, logs, event loop, name lookups, calls of operators
_OF_A_MEMBER: Final = 2  # a probe, and a cancel
_OF_A_REQUEST: Final = 2  # to nodes


class Budget(NamedTuple):
    """What a limit allows."""

    from_clients: int
    to_nodes: int  # for requests


def budget(limit: int, members: int = 0) -> Budget:
    """Divide a limit in halves; even a hopeless one leaves something to each. Members take from what is to nodes."""
    left = max(limit - _OWN, 2 * _OF_A_REQUEST)
    to_nodes = left // 2
    return Budget(from_clients=left - to_nodes, to_nodes=max(_OF_A_REQUEST, to_nodes - members * _OF_A_MEMBER))


def limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def raise_limit() -> None:
    """Allow this process as many as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems have a lower limit of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
