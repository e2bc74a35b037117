"""Accepting connections that are to be encrypted, on real sockets; how a process does it is in `tests/integration`."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from contracts.configuration.schema import ProxyConfig
from proxy import accept
from proxy.accept import Acceptor
from proxy.access.tls import Tls, TlsFiles
from proxy.admission import descriptors
from proxy.connections import ClientProtocol, protocol
from tests.support.certificates import Authority
from tests.support.cluster import until_true

LIMIT = 80


async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def test_connections_without_a_handshake_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there may be keep nobody out for as long as a handshake may take; their sockets are closed."""
    monkeypatch.setattr(accept, "HANDSHAKE_S", 3600.0)
    monkeypatch.setattr(descriptors, "limit", lambda: LIMIT)
    authority = Authority(tmp_path)
    certificate, key = authority.sign("proxy")
    config = uvicorn.Config(answer, log_config=None, lifespan="off", ws="none")
    config.load()
    http, state = protocol(ProxyConfig()), uvicorn.server.ServerState()

    def make() -> ClientProtocol:
        made: ClientProtocol = http(config=config, server_state=state, app_state={})
        return made

    most = descriptors.budget(LIMIT).from_clients
    with socket.create_server(("127.0.0.1", 0)) as listening:
        acceptor = Acceptor(listening, state, make, tls=Tls(TlsFiles(certificate=certificate, key=key)))
        acceptor.start()
        address = listening.getsockname()
        flood = [socket.create_connection(address) for _ in range(most)]
        context = ssl.create_default_context(cafile=str(authority.path))
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="127.0.0.1")
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            got = await reader.readuntil(b"\r\n\r\n")
        flood[0].settimeout(0)
        await until_true(lambda: _has_ended(flood[0]))
        acceptor.close()
        await acceptor.joined()
        await until_true(lambda: _has_ended(flood[-1]))  # who is late when the proxy stops
        writer.transport.abort()
        for sock in flood:
            sock.close()
        await until_true(lambda: not state.connections)

    assert got.startswith(b"HTTP/1.1 200 OK")


def _has_ended(sock: socket.socket) -> bool:
    sock.settimeout(0)
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True
    except BlockingIOError:
        return False
