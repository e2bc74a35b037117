"""Ports for servers of tests."""

import random
import socket
from contextlib import suppress
from typing import Final

RANGE: Final = (20_000, 32_000)
_given: Final[set[int]] = set()


def free_port() -> int:
    """A port that nobody listens on, neither of those that Mooncake draws nor of those that connections are made from.

    The kernel's own choice would be one of the latter: taken by somebody's connection before, or between two starts. It
    may also be the same twice, before anybody listens there; this one never is, in one process.
    """
    while True:
        port = random.randrange(*RANGE)
        if port in _given:
            continue
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given.add(port)
            return port
