"""A client's connection whose transport the test moves."""

from typing import Any

import uvicorn
from starlette.types import ASGIApp

from baton.contracts.configuration.schema import ProxyConfig
from baton.proxy.http_server.client_protocol import ClientProtocol, protocol
from tests.support.fake_transport import Transport

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


def connected(app: ASGIApp, transport: Transport) -> ClientProtocol:
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
    config.load()
    http: Any = protocol(ProxyConfig(client_stall_timeout_s=0.05))
    made: ClientProtocol = http(config=config, server_state=uvicorn.server.ServerState(), app_state={})
    made.connection_made(transport)  # type: ignore[arg-type]
    return made
