"""Transfer engines for a moment, each in a child process: see `kv_connector/engine/probe.py`."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from baton.contracts.probe import Order, Place, Push, Pushed, Receive, Receiving
from baton.node.errors import NodeError

MAX_RECEIVERS = 4
START_TIMEOUT_S = 20.0
PUSHING_S = 60.0  # that all pushes of an order may take; each has a bound of its own
STOP_S = 5.0
_T = TypeVar("_T")
COMMAND = (sys.executable, "-m", "baton.kv_connector.engine.probe")


class ProbeError(NodeError):
    """The engine did not start, or ended without an answer."""


class ProbeSilentError(ProbeError):
    """The engine gave no answer in time."""


class ProbeBusyError(NodeError):
    """As many probes as are allowed at once are under way."""


class ProbeEngines:
    """Starts and ends them. For one event loop."""

    def __init__(self, place: Place, environ: Mapping[str, str] | None = None) -> None:
        """`environ` of the children; None: this process's."""
        self._place = place
        self._environ = environ
        self._receivers: dict[str, Process] = {}
        self._starting = 0
        self._pushing: Process | None = None
        self._may_push = asyncio.Lock()

    async def receive(self, order: Receive) -> Receiving:
        """Put up a receiver; it ends after `order.seconds` at the latest."""
        self._receivers = {name: child for name, child in self._receivers.items() if child.returncode is None}
        if len(self._receivers) + self._starting >= MAX_RECEIVERS:
            raise ProbeBusyError("other probes are under way on this node")
        self._starting += 1
        try:
            child = await self._start(order)
            found = await _answer(child, Receiving, START_TIMEOUT_S)
        finally:
            self._starting -= 1
        self._receivers[found.session] = child
        return found

    async def release(self, session: str) -> bool:
        """Take a receiver down; False if there is none of this name."""
        child = self._receivers.pop(session, None)
        if child is not None:
            await _end(child)
        return child is not None

    async def push(self, order: Push) -> Pushed:
        """Push, one order at a time."""
        if self._may_push.locked():
            raise ProbeBusyError("another probe is pushing from this node")
        async with self._may_push:
            self._pushing = child = await self._start(order)
            patience_s = START_TIMEOUT_S + PUSHING_S + order.idle_s
            try:
                return await _answer(child, Pushed, patience_s)
            except ProbeSilentError:
                return Pushed(problem=f"the pushes did not end within {patience_s:g} s")
            finally:
                self._pushing = None
                await _end(child)

    async def stop(self) -> None:
        children = [*self._receivers.values(), *([self._pushing] if self._pushing else [])]
        self._receivers.clear()
        await asyncio.gather(*map(_end, children))

    async def _start(self, order: Receive | Push) -> Process:
        child = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=dict(self._environ) if self._environ else None
        )
        assert child.stdin is not None
        with suppress(ConnectionError):  # it has ended already: its answer says why
            child.stdin.write(msgspec.json.encode(Order(place=self._place, what=order)) + b"\n")
            await child.stdin.drain()
        return child


async def _answer(child: Process, kind: type[_T], timeout_s: float) -> _T:
    assert child.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            line = await child.stdout.readline()
    except TimeoutError:
        await _end(child)
        raise ProbeSilentError(f"the probe's transfer engine gave no answer within {timeout_s:g} s") from None
    except BaseException:  # the caller has gone
        await _end(child)
        raise
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError:
        raise ProbeError(f"the probe's transfer engine did not start: {await _last_words(child)}") from None


async def _last_words(child: Process) -> str:
    await _end(child)
    assert child.stderr is not None
    lines = (await child.stderr.read()).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it gave no reason"


async def _end(child: Process) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await child.wait()
