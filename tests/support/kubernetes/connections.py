"""TCP connections of a process's network namespace, from `/proc/<pid>/net/tcp`."""

import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

_LISTENING: Final = "0A"
_HALF_OPEN: Final = frozenset({"02", "03"})


class Accepted(NamedTuple):
    """A connection that somebody opened to this namespace."""

    source: str  # address
    port: int  # here


def accepted(pid: int) -> set[Accepted]:
    """Return who is connected to ports that are listened at; nothing, if the process has ended."""
    try:
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:
        return set()
    return {found for found in read("\n".join(tables)) if not found.source.startswith("127.")}


def read(text: str) -> set[Accepted]:
    """Read lines of the kernel's tables, of both families."""
    rows = [line.split()[1:4] for line in text.splitlines() if line.strip()[:1].isdigit()]
    listening = {_port(local) for local, _, state in rows if state == _LISTENING}
    return {
        Accepted(_address(remote), _port(local))
        for local, remote, state in rows
        if state != _LISTENING and state not in _HALF_OPEN and _port(local) in listening
    }


def _port(place: str) -> int:
    return int(place.partition(":")[2], 16)


def _address(place: str) -> str:
    """The last four bytes: an IPv6 socket shows an IPv4 peer as a mapped address."""
    (number,) = struct.unpack("<I", bytes.fromhex(place.partition(":")[0][-8:]))
    return socket.inet_ntoa(struct.pack("!I", number))
