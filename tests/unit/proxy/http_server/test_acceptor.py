"""Accepting connections that are to be encrypted, on real sockets; how a process does it is in `tests/integration`."""

import asyncio
import errno
import logging
import math
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.http_server import acceptor as accept
from baton.proxy.http_server import descriptors
from baton.proxy.http_server.acceptor import Acceptor
from baton.proxy.http_server.client_protocol import ClientProtocol, protocol
from baton.proxy.http_server.tls import Tls, TlsFiles
from tests.support.certificates import Authority
from tests.support.cluster import until_true

LIMIT = 80


async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Served:
    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        certificate, key = authority.sign("proxy")
        self.state = uvicorn.server.ServerState()
        self._config = uvicorn.Config(answer, log_config=None, lifespan="off", ws="none")
        self._config.load()
        self._http = protocol(ProxyConfig())
        self.context = ssl.create_default_context(cafile=str(authority.path))
        self.most = descriptors.budget(LIMIT).from_clients
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()
        self.acceptor = Acceptor(
            self._listening, self.state, self._make, tls=Tls(TlsFiles(certificate=certificate, key=key))
        )
        self.acceptor.start()

    def _make(self) -> ClientProtocol:
        made: ClientProtocol = self._http(config=self._config, server_state=self.state, app_state={})
        return made

    async def ask(self) -> bytes:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*self.address, ssl=self.context, server_hostname="127.0.0.1")
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            got = await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        return got

    async def stop(self) -> None:
        self.acceptor.close()
        await self.acceptor.joined()
        for connection in list(self.state.connections):
            connection.transport.abort()
        await until_true(lambda: not self.state.connections)


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """An acceptor that waits for handshakes for as long as it must."""
    monkeypatch.setattr(accept, "HANDSHAKE_S", 3600.0)
    monkeypatch.setattr(descriptors, "limit", lambda: LIMIT)
    made = Served(tmp_path)
    yield made
    await made.stop()


async def test_connections_without_a_handshake_make_room(served: Served) -> None:
    """As many as there may be keep no client out for as long as a handshake may take; their sockets are closed."""
    flood = [socket.create_connection(served.address) for _ in range(served.most)]
    got = await served.ask()
    await until_true(lambda: _has_ended(flood[0]))
    served.acceptor.close()
    await served.acceptor.joined()
    await until_true(lambda: _has_ended(flood[-1]))  # who is late when the proxy stops
    for sock in flood:
        sock.close()

    assert got.startswith(b"HTTP/1.1 200 OK")


async def test_a_connection_makes_room_for_one_that_waits_and_is_gone_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS would wait for the goodbye of a client that says nothing, while another one has its place already."""
    monkeypatch.setattr(accept, "UNUSED_S", 0.0)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    def connect() -> ssl.SSLSocket:
        sock = socket.create_connection(served.address)
        return served.context.wrap_socket(sock, server_hostname="127.0.0.1")

    silent = [await asyncio.to_thread(connect) for _ in range(served.most)]
    await until_true(lambda: len(served.state.connections) == served.most)
    got = await served.ask()
    there = len(served.state.connections)
    for sock in silent:
        sock.close()
    await until_true(lambda: not served.state.connections)

    assert got.startswith(b"HTTP/1.1 200 OK")
    assert there <= served.most
    assert not errors


async def test_a_handshake_may_take_only_so_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no other connection wants in."""
    monkeypatch.setattr(accept, "HANDSHAKE_S", 0.05)
    with socket.create_connection(served.address) as silent:
        await until_true(lambda: _has_ended(silent))


async def test_handshakes_that_have_just_begun_are_given_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another connection waits, and is looked for again a moment later."""
    monkeypatch.setattr(accept, "UNUSED_S", 3600.0)
    flood = [socket.create_connection(served.address) for _ in range(served.most + 1)]
    await until_true(lambda: served.acceptor._timer is not None)
    ended = [_has_ended(sock) for sock in flood]
    monkeypatch.setattr(accept, "UNUSED_S", 0.0)
    await until_true(lambda: _has_ended(flood[0]))
    for sock in flood:
        sock.close()

    assert not any(ended)


async def test_a_failed_handshake_is_told_but_not_each_of_many(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is a warning, as is the next one after a time without; those between are for debugging."""
    caplog.set_level(logging.DEBUG, accept.logger.name)
    served.acceptor._said_s = -math.inf
    for number, silence_s in enumerate((3600.0, 3600.0, 0.0), 1):
        monkeypatch.setattr(accept, "_SILENCE_S", silence_s)
        _, writer = await asyncio.open_connection(*served.address)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await until_true(partial(_has_told, caplog, number))
        writer.close()

    assert told(caplog) == [(level, "a client's TLS handshake failed") for level in ("WARNING", "DEBUG", "WARNING")]


@pytest.mark.parametrize(
    ("failure", "is_told"),
    [(OSError(errno.ENFILE, "Too many open files in system"), True), (ConnectionAbortedError(), False)],
    ids=["no descriptor", "a client that has left"],
)
async def test_a_connection_that_cannot_be_accepted_keeps_no_other_out(
    served: Served,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    failure: OSError,
    *,
    is_told: bool,
) -> None:
    """Without a descriptor all wait for one in the kernel's queue, and an operator is told."""
    failures, listening = [failure], served.acceptor._sock

    def accepted() -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return listening.accept()

    monkeypatch.setattr(served.acceptor, "_sock", Mock(wraps=listening, accept=accepted))
    got = await served.ask()
    has_paused = served.acceptor._timer is not None

    assert got.startswith(b"HTTP/1.1 200 OK")
    assert told(caplog) == [("WARNING", "no connection can be accepted")] * is_told
    assert has_paused is is_told


def _has_told(caplog: pytest.LogCaptureFixture, number: int) -> bool:
    return len(told(caplog)) == number


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(each.levelname, each.message) for each in caplog.records if each.name == accept.logger.name]


def _has_ended(sock: socket.socket) -> bool:
    sock.settimeout(0)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True
    except BlockingIOError:
        return False
