"""Connections at the moment in which a proxy stops."""

import asyncio
import socket

import uvicorn
from starlette.types import Receive, Scope, Send

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.http_server.acceptor import BoundedServer
from baton.proxy.http_server.client_protocol import protocol

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
CONNECTIONS = 100  # more than are accepted in one turn of the loop


async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_a_client_that_has_connected_is_answered() -> None:
    """Although it waits in the kernel's queue, unseen by the proxy when that is told to stop; no later client is."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", http=protocol(ProxyConfig()))
    config.load()
    server = BoundedServer(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        await server.startup([listening])
        clients = [socket.create_connection(address) for _ in range(CONNECTIONS)]
        for client in clients[1:]:
            client.sendall(REQUEST)
        async with asyncio.timeout(20):
            await server.shutdown([listening])
    answers = []
    for client in clients:
        with client:
            client.settimeout(20)
            answers.append(client.makefile("rb").read())

    assert answers[0] == b""
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers[1:])
