"""Are the stack's ports free? Asked before anything starts, so that the answer names the flag to change."""

import errno
import os
import socket
from collections.abc import Iterator

from baton.deploy.own_url import LOOPBACK
from baton.deploy.stack import Listener, Stack

REASONS = {
    errno.EADDRINUSE: "is taken by another process",
    errno.EACCES: "may not be bound by this user",
    errno.EADDRNOTAVAIL: "cannot be bound: the address is not this machine's",
}


def taken(stack: Stack) -> Iterator[str]:
    for member in stack.members:
        for listener in member.listeners:
            if reason := _refusal(listener):
                where = f"port {listener.port} on {listener.host or 'any address'}"
                yield f"{where} {reason}; {member.name} needs it: choose another with {listener.flag}"


def _refusal(listener: Listener) -> str:
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        try:
            probe.bind((listener.host if listener.host not in LOOPBACK else "", listener.port))
        except (OSError, OverflowError) as exc:
            number = exc.errno if isinstance(exc, OSError) else None
            return REASONS.get(number or 0) or (f"cannot be bound: {os.strerror(number)}" if number else "is no port")
    return ""
