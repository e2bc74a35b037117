"""Which process has a port of this machine: a server of ours that works, or another program."""

import urllib.request
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.deploy.doctor import local
from tests.support.certificates import Authority
from tests.support.processes import answering

HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _Server(BaseHTTPRequestHandler):
    """Says the same to each who connects."""

    words: ClassVar[bytes]

    def handle(self) -> None:
        self.wfile.write(self.words)
        self.connection.settimeout(5)
        self.connection.recv(4096)


def server_that_says(said: bytes) -> AbstractContextManager[int]:
    return answering(type("Server", (_Server,), {"words": said}))


def codes(port: int, certificate: Path | None = None, client_ca: Path | None = None) -> list[str]:
    proxy = ProxyConfig(host="127.0.0.1", port=port, tls_cert_file=certificate, tls_client_ca_file=client_ca)
    return [finding.code for finding in local._proxy(proxy)]


def test_a_port_that_a_healthy_server_has_is_well() -> None:
    """It may be the very node that is looked for."""
    with server_that_says(HEALTHY) as port:
        assert codes(port) == []


def test_a_healthy_proxy_behind_tls_is_well(tmp_path: Path) -> None:
    """It is asked as it is configured; one that asks for a client's certificate need only take connections. In plain HTTP it is not ours."""
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    with answering(type("Server", (_Server,), {"words": HEALTHY}), pair) as port:
        assert codes(port, pair[0]) == codes(port, pair[0], authority.path) == []
    with server_that_says(HEALTHY) as port:
        assert codes(port, pair[0]) == ["port"]


@pytest.mark.parametrize(
    "words",
    [
        HEALTHY.replace(b"200 OK", b"503 Service Unavailable"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
        b"",
    ],
)
def test_a_port_that_something_else_has_is_named(words: bytes) -> None:
    """Whatever it speaks, down to nothing, a server that does not work, or a ZMQ socket's greeting."""
    with server_that_says(words) as port:
        assert codes(port) == ["port"]


def test_this_machine_is_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by way of the proxy that the environment names for the world outside."""
    monkeypatch.setattr(urllib.request, "_opener", None)  # it would remember the environment of an earlier test
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with server_that_says(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n") as gateway:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{gateway}")
        with server_that_says(HEALTHY) as port:
            assert codes(port) == []
