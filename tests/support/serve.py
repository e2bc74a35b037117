"""Serving ASGI applications on loopback ports, several in one event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    """A uvicorn server that leaves the test process's signal handlers alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told_to_stop = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Wait until told to stop; uvicorn's own loop looks ten times a second, which adds up over many tests."""
        await self.on_tick(0)
        await self.told_to_stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut every connection, as a process that is killed does."""
        for sock in sockets or []:
            asyncio.get_running_loop().remove_reader(sock)
        for _ in range(5):  # one that was accepted last has no protocol yet, and would stay open
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)
        await self.lifespan.shutdown()
        assert not self.lifespan.should_exit, "the application failed while it stopped"


class Listening:
    """One application on one port; it can be stopped and started again there."""

    def __init__(self, app: Any, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
        self._app = app
        self._host = host
        # httpx keeps connections for 5 s, as uvicorn does: a request then meets one that is just being closed.
        defaults = {"log_level": "critical", "lifespan": "on", "access_log": False, "timeout_keep_alive": 60}
        self._settings = {**defaults, **settings}
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = port  # 0 until one is chosen

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one; the socket is bound here, so no port is raced for."""
        sock = socket.create_server((self._host, self.port))
        self.port = sock.getsockname()[1]
        self._server = _Server(uvicorn.Config(self._app, **self._settings))
        self._task = asyncio.create_task(self._server.serve(sockets=[sock]))
        while not self._server.started:
            if self._task.done():
                raise RuntimeError("app died on start-up") from self._task.exception()
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        """Close the port and every connection; open requests are cut."""
        if self._server is None or self._task is None:
            return
        self._server.told_to_stop.set()
        await self._task
        self._server = self._task = None


@asynccontextmanager
async def serve(app: Any, **settings: Any) -> AsyncIterator[str]:
    """Serve `app` on a loopback port; yield its base URL once it accepts.

    (`httpx.ASGITransport` buffers whole responses: it can test neither streaming nor disconnects.)
    """
    listening = Listening(app, **settings)
    await listening.start()
    try:
        yield listening.url
    finally:
        await listening.stop()
