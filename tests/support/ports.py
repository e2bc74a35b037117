"""Ports for servers of tests."""

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from typing import Final

RANGE: Final = (20_000, 32_000)
WORKERS: Final = 4  # of pytest-xdist, each with its part of the range
_worker: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
_share: Final = (RANGE[1] - RANGE[0]) // WORKERS
_given: Final[set[int]] = set()
# Each port is a byte of this file, locked by the process that it was given to until that ends.
_locks: Final = os.open(f"{tempfile.gettempdir()}/baton-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def free_port(in_a_row: int = 1) -> int:
    """The first of so many ports that no process listens on, nor Mooncake draws, nor connections are made from.

    The kernel's own choice would be one of the latter: taken by another process's connection before, or between two
    starts. It may also be the same twice, before anybody listens there; this one never is, be it for another run of the
    tests.
    """
    while True:
        first = RANGE[0] + _worker * _share + random.randrange(_share - in_a_row)
        ports = range(first, first + in_a_row)
        if _given.isdisjoint(ports) and all(map(_is_locked_now, ports)) and all(map(is_free, ports)):
            _given.update(ports)
            return first


def _is_locked_now(port: int) -> bool:
    """Lock a port; return whether no other process has it."""
    with suppress(OSError):
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        return True
    return False


def is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
