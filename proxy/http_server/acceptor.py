"""Accepting connections, as many as there may be: the others wait in the kernel's queue, where nothing happens to them.

uvloop accepts whatever comes, and at the limit of open files libuv accepts and closes at once, which clients see as a
reset. So uvicorn gets no listening socket; it is read here, and not read while there are too many connections. A
connection that waits for a request, or for the rest of one's head, then makes room, the oldest first.
"""

import asyncio
import gc
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import uvicorn

from baton.contracts.http_server import waiting_at
from baton.proxy.http_server import descriptors
from baton.proxy.http_server.client_protocol import ClientProtocol
from baton.proxy.http_server.tls import Tls

logger = logging.getLogger(__name__)

UNUSED_S: Final = 1.0  # so long a connection may be without a request although others want in
PAUSE_S: Final = 0.02  # while there are too many
PER_TURN: Final = 64  # connections, of the event loop
JOIN_S: Final = 1.0  # for what takes two turns of the loop, or a TLS handshake
HANDSHAKE_S: Final = 10.0
_SILENCE_S: Final = 5.0  # between two log lines


class Acceptor:
    """One listening socket; as much of asyncio's `Server` as uvicorn uses."""

    def __init__(
        self,
        sock: socket.socket,
        state: uvicorn.server.ServerState,
        make: Callable[[], ClientProtocol],
        *,
        tls: Tls | None = None,
        farewell_s: float = 30.0,
    ) -> None:
        """`sock` listens; `state` holds the server's connections.

        `farewell_s`: how long an encrypted connection may take for its last bytes and TLS's own goodbye.
        """
        self._sock = sock
        self._state = state
        self._make = make
        self._most = descriptors.budget(descriptors.limit()).from_clients
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._farewell_s = farewell_s
        self._joining: dict[asyncio.Task[None], float] = {}  # accepted, not yet among the connections; since when
        self._timer: asyncio.TimerHandle | None = None
        self._said_s = -_SILENCE_S

    def start(self) -> None:
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Accept no more than who has connected; idempotent."""
        self._stop_timer()
        if self._sock.fileno() >= 0:
            while self._accept():
                pass
            self._stop_timer()
            self._loop.remove_reader(self._sock)
            self._sock.close()

    async def joined(self) -> None:
        """Wait until all that were accepted are among the server's connections; who takes too long is not wanted."""
        if self._joining:
            _, late = await asyncio.wait(self._joining, timeout=JOIN_S)
            for task in late:
                task.cancel()

    async def wait_closed(self) -> None:
        """Nothing is left to be waited for."""

    def _accept(self) -> bool:
        """Accept some; return whether there may be more, and room for them."""
        for accepted in range(PER_TURN):
            if len(self._state.connections) + len(self._joining) >= self._most:
                if accepted:
                    return True  # whether one more waits is known at the next call: room is made for nothing else
                if not self._make_room():
                    return self._pause()
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as exc:  # no descriptor is left after all
                logger.log(self._level(), "no connection can be accepted", extra={"problem": exc.strerror})
                return self._pause()
            task = self._loop.create_task(self._join(connection))
            self._joining[task] = self._loop.time()
            task.add_done_callback(lambda task: self._joining.pop(task, None))  # it may have had to make room
        return True

    async def _join(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            encrypted: dict[str, Any] = {}
            if self._tls is not None:
                encrypted = {"ssl": self._tls.context, "ssl_shutdown_timeout": self._farewell_s}
                encrypted["ssl_handshake_timeout"] = HANDSHAKE_S
            await self._loop.connect_accepted_socket(self._make, connection, **encrypted)
        except OSError as exc:  # it has gone already, or there was no handshake
            connection.close()
            if self._tls is not None:
                logger.log(self._level(), "a client's TLS handshake failed", extra={"problem": str(exc)})

    def _make_room(self) -> bool:
        """Close the connection that was not used for longest, or whose handshake takes longest; say whether there was one."""
        unused = waiting_at(self._state)
        oldest = next(iter(unused), None)
        if oldest is not None and self._loop.time() - unused[oldest] >= UNUSED_S:
            oldest.give_way()
            return True
        slowest = next(iter(self._joining), None)
        if slowest is None or self._loop.time() - self._joining[slowest] < UNUSED_S:
            return False
        del self._joining[slowest]
        slowest.cancel()
        return True

    def _pause(self) -> bool:
        self._loop.remove_reader(self._sock)
        self._timer = self._loop.call_later(PAUSE_S, self.start)
        return False

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _level(self) -> int:
        now_s = self._loop.time()
        if now_s - self._said_s < _SILENCE_S:
            return logging.DEBUG
        self._said_s = now_s
        return logging.WARNING


class BoundedServer(uvicorn.Server):
    """uvicorn's server, with our way of accepting."""

    def __init__(self, config: uvicorn.Config, tls: Tls | None = None, *, farewell_s: float = 30.0) -> None:
        super().__init__(config)
        self._tls = tls
        self._farewell_s = farewell_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        listening = [self.config.bind_socket()] if sockets is None else sockets
        await super().startup(sockets=[])
        for sock in listening:
            sock.listen(self.config.backlog)
            acceptor = Acceptor(sock, self.server_state, self._protocol, tls=self._tls, farewell_s=self._farewell_s)
            acceptor.start()
            self.servers.append(acceptor)  # type: ignore[arg-type]
        if self._tls is not None:
            self._tls.start()
        _spare_what_stays()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take in who has connected: a connection that is closed unseen is reset. Then stop."""
        acceptors = [server for server in self.servers if isinstance(server, Acceptor)]
        for acceptor in acceptors:
            acceptor.close()
        for acceptor in acceptors:
            await acceptor.joined()
        if self._tls is not None:
            await self._tls.stop()
        await super().shutdown(sockets)

    def _protocol(self) -> ClientProtocol:
        made = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        assert isinstance(made, ClientProtocol)
        return made


def _spare_what_stays() -> None:
    """Take modules and routes out of every later garbage collection: a full one takes 16 ms and more, and all streams wait."""
    gc.collect()
    gc.freeze()
