"""The sockets that workers listen on."""

import errno
import os
import socket
from types import SimpleNamespace

import pytest

from baton.proxy.workers import listen
from baton.proxy.workers.listen import close, listen_on
from tests.support.ports import free_port


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_worker_has_a_socket_of_its_own_on_the_port(workers: int) -> None:
    """Only several workers share it with others; nothing listens yet."""
    port = free_port()
    groups = listen_on("127.0.0.1", port, workers)
    sockets = [sock for group in groups for sock in group]
    names = [sock.getsockname() for sock in sockets]
    shared = [sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) for sock in sockets]
    close(sockets)

    assert [len(group) for group in groups] == [1] * workers
    assert names == [("127.0.0.1", port)] * workers
    assert shared == [int(workers > 1)] * workers
    assert [sock.fileno() for sock in sockets] == [-1] * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_on_which_another_process_listens_is_refused(workers: int) -> None:
    """Even one that would share it."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            listen_on("127.0.0.1", other.getsockname()[1], workers)


def test_what_was_bound_is_given_back_if_an_address_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the reason; no socket is left open."""
    made, port = list[socket.socket](), free_port()
    monkeypatch.setattr(Bound, "left", 2)

    def make(*kind: int) -> socket.socket:
        made.append(Bound(*kind))
        return made[-1]

    monkeypatch.setattr(listen, "socket", SimpleNamespace(**{**vars(socket), "socket": make}))

    with pytest.raises(OSError, match="it is taken"):
        listen_on("127.0.0.1", port, 2)

    assert len(made) == 3
    assert [sock.fileno() for sock in made] == [-1] * 3


class Bound(socket.socket):
    """One that can be bound so many times."""

    left = 0

    def bind(self, address: object) -> None:
        if not Bound.left:
            raise OSError(errno.EADDRINUSE, "it is taken")
        Bound.left -= 1
        super().bind(address)  # type: ignore[arg-type]


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_an_ipv6_address_leaves_the_ipv4_one_to_another_socket() -> None:
    sock = listen._bound((socket.AF_INET6, ("::", 0)), shared=False)
    only = sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    sock.close()

    assert only == 1
