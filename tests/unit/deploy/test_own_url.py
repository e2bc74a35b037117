import socket

import pytest

from baton.deploy.own_url import ask_own, own_url


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9"),
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("", "http://127.0.0.1:9"),
        ("::", "http://[::1]:9"),
        ("::1", "http://[::1]:9"),
        ("node.example", "http://node.example:9"),
    ],
)
def test_what_listens_everywhere_is_asked_at_the_loopback_of_its_family(host: str, url: str) -> None:
    """A proxy on `::` takes IPv6 alone: 127.0.0.1 would refuse."""
    assert own_url(host, 9) == url


def test_a_port_that_makes_no_handshake_is_no_server_with_tls() -> None:
    """Its process hangs, or it is another one's: `baton health` and `baton doctor` are to tell."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="timed out"):
        ask_own("127.0.0.1", server.getsockname()[1], "", 0.2, is_encrypted=True)
