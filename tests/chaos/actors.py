"""Who does what a fault says, and undoes it."""

import asyncio
import os
import signal
import subprocess
import time
from typing import Final, Protocol
from urllib.parse import urlsplit

from tests.chaos.cluster import Cluster
from tests.chaos.memory import processes_of
from tests.chaos.schedule import Kill, Stall
from tests.e2e.stack import Server
from tests.support.ports import free_port, is_free

ENDS_WITHIN_S: Final = 15.0  # a node whose engine was killed
CONTROL_PORT: Final = "--control-port"


class ActorError(Exception):
    """The fault could not be done or undone; the message says what did not hold."""


class Actor(Protocol):
    """One fault on one victim."""

    async def strike(self) -> None:
        """Do it."""

    async def heal(self) -> None:
        """Undo it, and wait until the victim could serve.

        Raises:
            ActorError: it could not be undone.
        """


class Killer:
    """Kills a server, or a node's engine alone, and starts it again."""

    def __init__(self, server: Server, fault: Kill) -> None:
        self._server = server
        self._fault = fault

    async def strike(self) -> None:
        assert self._server.child is not None
        if self._fault.engine_only:
            os.kill(engine_of(self._server), signal.SIGKILL)
        else:
            self._server.child.kill()

    async def heal(self) -> None:
        """See `Actor.heal`. A node ends by itself when its engine has gone; a supervisor would start it again then."""
        child = self._server.child
        assert child is not None
        try:
            await asyncio.to_thread(child.wait, ENDS_WITHIN_S)
        except subprocess.TimeoutExpired as exc:
            child.kill()
            raise ActorError(f"{self._server.name} still runs {ENDS_WITHIN_S} s after its engine was killed") from exc
        if self._fault.other_port and CONTROL_PORT in self._server.argv:
            self._server.argv[self._server.argv.index(CONTROL_PORT) + 1] = str(free_port())
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        """As a supervisor, which tries again for as long as workers of the killed process hold its port."""
        port, waited_until = urlsplit(self._server.url).port or 0, time.monotonic() + ENDS_WITHIN_S
        while not is_free(port) and time.monotonic() < waited_until:
            time.sleep(0.1)
        self._server.spawn()
        try:
            self._server.wait_ready()
        except RuntimeError as exc:
            raise ActorError(f"{self._server.name} did not come back: {exc}") from exc


class Staller:
    """Stops a server and all its processes, and lets them go on."""

    def __init__(self, server: Server, fault: Stall) -> None:
        self._server = server
        self._fault = fault

    async def strike(self) -> None:
        if self._fault.engine_only:
            os.kill(engine_of(self._server), signal.SIGSTOP)
        else:
            self._server.signal(signal.SIGSTOP)

    async def heal(self) -> None:
        self._server.signal(signal.SIGCONT)


def engine_of(server: Server) -> int:
    """Return the process id of a node's engine.

    Raises:
        ActorError: it has none.
    """
    processes = processes_of(server)
    if f"{server.name}/engine" not in processes:
        raise ActorError(f"{server.name} has no engine process, but {processes}")
    return processes[f"{server.name}/engine"]


def actor_for(cluster: Cluster, fault: Kill | Stall, victim: str) -> Actor:
    """Return who does a fault to the server of that name."""
    server = cluster.named(victim)
    return Killer(server, fault) if isinstance(fault, Kill) else Staller(server, fault)
