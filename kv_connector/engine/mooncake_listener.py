"""Two things about a running Mooncake engine that its Python interface does not tell or let us set.

*What it announces to peers.* Every engine answers on its RPC port with a JSON description (P2P handshake: 8 bytes of
length, little-endian, one byte of type, the text). We ask ours as a peer would: it names the data port, whether writes
are acknowledged after they have been applied (`tcp_proto_version` 2, Mooncake issue 2086), and the transport, which
Mooncake chooses by what it was built for and what cards it finds, not by the name that `initialize` is given.

*How long its destructor takes.* It joins the thread that accepts on the RPC port, which looks for the end only once
`accept` has timed out after 1 s, and the destructor holds the GIL: every fence would stall the model for up to a
second. The listening socket is a file descriptor of this process, so we shorten its time-out.
"""

import json
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

from baton.kv_connector.errors import EngineError

_ACCEPT_TIMEOUT_MS = 20
_METADATA = 1  # `HandShakeRequestType::Metadata` in Mooncake's include/common.h
_LENGTH = struct.Struct("<Q")
_MAX_BYTES = 4 * 1024 * 1024  # over TCP it has 63 for each registered buffer; RDMA adds two keys a card
_MAX_PORT = 65_535
_LISTEN = "0A"  # TCP_LISTEN in the kernel's tables


class Announcement(NamedTuple):
    """What an engine tells its peers."""

    data_port: int  # 0 where the transport has none
    tcp_version: int  # 0 where the transport is not TCP
    transport: str = ""  # as Mooncake calls it; empty: it does not say


def ask(host: str, rpc_port: int, timeout_s: float = 2.0) -> Announcement:
    """Ask an engine for its description; raises `EngineError` if it gives none in the form that we know, within so long in all."""
    until_s = time.monotonic() + timeout_s  # the resolver has a time-out of its own
    try:
        with _connect(host, rpc_port, until_s) as sock:
            request = bytes([_METADATA]) + b"{}"
            sock.settimeout(_left_s(until_s))
            sock.sendall(_LENGTH.pack(len(request)) + request)
            (length,) = _LENGTH.unpack(_read(sock, _LENGTH.size, until_s))
            if length > _MAX_BYTES:
                raise OSError(f"its description has {length} bytes")
            described: dict[str, Any] = json.loads(_read(sock, length, until_s)[1:])
        data_port = int(described.get("tcp_data_port", 0))
        if not 0 <= data_port <= _MAX_PORT:
            raise ValueError(f"its data port is {data_port}")
        return Announcement(
            data_port,
            int(described.get("tcp_proto_version", 0)),
            str(described.get("protocol", "")),
        )
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise EngineError(f"the transfer engine at {host}:{rpc_port} does not describe itself: {exc}") from exc


def _connect(host: str, port: int, until_s: float) -> socket.socket:
    """Try each of a name's addresses; all of them together have until then."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV  # with the scope of an IPv6 address
    addresses = [(socket.getnameinfo(address, numeric)[0], port) for *_, address in found]
    for number, address in enumerate(addresses, start=1):
        try:
            return socket.create_connection(address, timeout=_left_s(until_s) / (len(addresses) - number + 1))
        except OSError:
            if number == len(addresses):
                raise
    raise OSError("its name has no address")


def _left_s(until_s: float) -> float:
    if (left_s := until_s - time.monotonic()) <= 0:
        raise TimeoutError("it took too long")
    return left_s


def _read(sock: socket.socket, size: int, until_s: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        sock.settimeout(_left_s(until_s))
        if not (chunk := sock.recv(size - len(data))):
            raise OSError("the connection was closed early")
        data += chunk
    return bytes(data)


def shorten_accept(port: int) -> bool:
    """Let `accept` on our listening `port` time out after 20 ms, from its next call on: ask the engine something.

    False: the socket was not found (no /proc), so destroying the engine takes up to a second.
    """
    try:
        descriptor = _descriptor_of(_listening_inodes(port))
    except OSError:
        return False
    if descriptor is None:
        return False
    with socket.socket(fileno=os.dup(descriptor)) as listener:  # the option belongs to the socket, not to the copy
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, _ACCEPT_TIMEOUT_MS * 1000))
    return True


def _listening_inodes(port: int) -> set[str]:
    rows = [
        line.split()
        for table in (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
        if table.exists()
        for line in table.read_text(encoding="ascii").splitlines()[1:]
    ]
    return {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}


def _descriptor_of(inodes: set[str]) -> int | None:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if str(entry.readlink()) in wanted:
                return int(entry.name)
        except FileNotFoundError:  # closed by another thread
            continue
    return None
