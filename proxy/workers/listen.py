"""The sockets that workers listen on: one for each of them and each address, all on one port."""

import socket
from collections.abc import Iterable
from typing import Any

Address = tuple[socket.AddressFamily, Any]


def listen_on(host: str, port: int, workers: int) -> list[list[socket.socket]]:
    """Bind every address of a host name once per worker, which is to listen. Raises `OSError`: one cannot be bound."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    # SO_REUSEPORT would let us in beside another proxy of the same user: first see that no process listens there.
    close([_bound(address, shared=False) for address in addresses])
    sockets: list[list[socket.socket]] = []
    try:
        for _ in range(workers):
            sockets.append([])
            for address in addresses:
                sockets[-1].append(_bound(address, shared=workers > 1))
    except OSError:
        for group in sockets:
            close(group)
        raise
    return sockets


def _bound(to: Address, *, shared: bool) -> socket.socket:
    family, address = to
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
