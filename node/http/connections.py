"""How many HTTP connections a node has, and how long one may take to say what it wants.

A new connection always gets in while one of the others has no whole request: the oldest of those makes way, and one
that has shown the cluster's token or signature, as the proxy's have, only after all that have not. vLLM's server is
told through its configuration, which it reads for each connection.
"""

import asyncio
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from baton.contracts.http_server import Waiting, WaitingProtocol
from baton.kv_connector.telemetry.refusals import Refused
from baton.node.http.asgi import Scope

HEAD_TIMEOUT_S: Final = 20.0  # for a request's head to arrive; peers are near
BODY_TIMEOUT_S: Final = 120.0  # likewise for its body
MAX_HEAD_BYTES: Final = 256 * 1024
_LEAST: Final = 16
_CONNECTION: Final = "baton.connection"  # among the extensions of a request's scope


class Crowd:
    """The connections of one server that have no whole request, oldest first."""

    def __init__(self, most: int, refused: Callable[[Refused, str], None]) -> None:
        """`most` is how many connections there may be, with those that are being answered; `refused` hears of each closed one."""
        self._most = most
        self._refused = refused
        self.unproven: Waiting = {}
        self.proven: Waiting = {}

    def admit(self, newcomer: "NodeProtocol") -> None:
        """Let the oldest make way if there are too many; the newcomer itself, if all others are being answered."""
        if len(newcomer.connections) <= self._most:
            return
        others = self.unproven if len(self.unproven) > 1 else self.proven
        next(iter(others or self.unproven)).give_way()
        self._refused(Refused.CROWDED, "a connection without a request made way for another one")


class NodeProtocol(WaitingProtocol):
    """One connection: a head and a body each have their time."""

    head_timeout_s = HEAD_TIMEOUT_S
    body_timeout_s = BODY_TIMEOUT_S
    crowd: Crowd  # of its server
    _head_bytes: int | None = None  # while a head is coming

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.crowd.admit(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came; a head without end is not kept."""
        super().data_received(data)
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        cast("dict[str, Any]", self.scope)["extensions"] = {_CONNECTION: self}
        super().on_headers_complete()
        if not self.pipeline:
            self._waiting[self] = self.loop.time()
            self._expect_within(self.body_timeout_s)

    def on_message_complete(self) -> None:
        """The request is whole; or the rest of one that was refused has come, and the next one may."""
        super().on_message_complete()
        if self._is_answering():
            self._expect_nothing()
        elif not self.pipeline:
            self._expect_head()

    def handle_websocket_upgrade(self) -> None:
        self._expect_nothing()
        super().handle_websocket_upgrade()

    def prove(self) -> None:
        """It has shown that its peer knows the cluster secret."""
        self.crowd.unproven.pop(self, None)
        self._waiting = self.crowd.proven

    def give_way(self) -> None:
        """Give the descriptor up at once, with what the peer has not read of its last answer."""
        self._waiting.pop(self, None)
        self.transport.abort()

    def _end_late(self) -> None:
        """As `give_way`: a peer that reads nothing would keep the descriptor."""
        self.transport.abort()

    def _line(self) -> Waiting:
        return self.crowd.unproven

    def _is_answering(self) -> bool:
        return super()._is_answering() and not self.cycle.more_body


def bound_connections(server: Any, refused: Callable[[Refused, str], None]) -> None:
    """Bound the connections of a uvicorn server that accepts none yet.

    A quarter of the descriptors that are left is kept for what the process opens besides.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = (limit if limit != resource.RLIM_INFINITY else 1 << 20) - len(list(Path("/proc/self/fd").iterdir()))
    crowd = Crowd(max(_LEAST, left * 3 // 4), refused)
    server.config.http_protocol_class = type("Protocol", (NodeProtocol,), {"crowd": crowd})


def note_proof(scope: Scope) -> None:
    """Remember for a request's connection that the request has shown the token or a signature."""
    connection = scope.get("extensions", {}).get(_CONNECTION)
    if connection is not None:
        connection.prove()
