"""`/baton/probe`: tries things out for `baton doctor`, without touching the engine that serves.

What it can be asked, and what it answers, is in `contracts/probe.py`.
"""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import msgspec
import zmq

from baton.contracts import probe
from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.probe import Answer, Place, Question, Reached
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.sockets import Context, ControlClient
from baton.kv_connector.engine.mooncake_listener import ask
from baton.kv_connector.errors import ConnectorError
from baton.node.http.asgi import Receive, Scope, Send, read_body, send_error, send_json
from baton.node.http.probe_engines import ProbeBusyError, ProbeEngines, ProbeError
from baton.node.machine import machine

MAX_BODY_BYTES = 4096
DIAL_TIMEOUT_S = 3.0
GREET_TIMEOUT_S = 2.0

_decoder: msgspec.json.Decoder[Question] = msgspec.json.Decoder(Question)


class ProbeApi:
    """Answers requests to `PROBE_PATH`."""

    def __init__(self, secret: ClusterSecret, place: Place) -> None:
        self._secret = secret
        self._place = place
        self._engines: ProbeEngines | None = None  # made in the loop that serves
        self._context: Context | None = None  # for dialling

    def start(self) -> None:
        """Have libzmq open its context, for want of whose descriptors it would abort the process. Idempotent."""
        if self._context is None:
            self._context = Context()
            self._context.socket(zmq.DEALER).close()  # libzmq starts a context with its first socket

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in ("GET", "HEAD"):
            await send_json(send, 200, msgspec.to_builtins(machine(self._place.host, self._place.protocol)))
        elif scope["method"] == "POST":
            await self._try(receive, send)
        else:
            await send_error(send, 405, f"{scope['path']} takes GET and POST", [(b"allow", b"GET, HEAD, POST")])

    async def stop(self) -> None:
        if self._engines is not None:
            await self._engines.stop()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    async def _try(self, receive: Receive, send: Send) -> None:
        body = await read_body(receive, send, MAX_BODY_BYTES)
        if body is None:
            return
        try:
            found = await _while_asked_for(receive, self._do(_decoder.decode(body)))
        except DECODE_ERRORS as exc:
            await send_error(send, 400, f"that cannot be tried: {exc}")
        except (ProbeBusyError, ProbeError) as exc:
            await send_error(send, 503, str(exc))
        else:
            if found is not None:
                await send_json(send, 200, msgspec.to_builtins(found))

    async def _do(self, question: Question) -> Answer:
        if self._engines is None:
            self._engines = ProbeEngines(self._place)
        match question:
            case probe.Dial():
                self.start()
                assert self._context is not None
                return await asyncio.to_thread(_dial, question.address, self._secret, self._context)
            case probe.Greet():
                return await asyncio.to_thread(_greet, question.session)
            case probe.Receive():
                return await self._engines.receive(question)
            case probe.Release():
                return probe.Released(found=await self._engines.release(question.session))
            case probe.Push():
                return await self._engines.push(question)


async def _while_asked_for(receive: Receive, work: Coroutine[Any, Any, Answer]) -> Answer | None:
    """Do the work; give it up, and return None, when the caller leaves: it may take an hour, and others wait for theirs."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _dial(address: str, secret: ClusterSecret, context: Context) -> Reached:
    """Make a control connection and hang up; not a message is sent."""
    try:
        client = ControlClient(address, secret, context)
        try:
            is_in = client.handshake(DIAL_TIMEOUT_S)
        finally:
            client.close()
    except (ConnectorError, zmq.ZMQError) as exc:
        return Reached(problem=str(exc))
    if is_in:
        return Reached()
    if is_in is False:
        return Reached(problem="it refuses the connection: it holds another cluster secret", refused=True)
    return Reached(problem=f"nobody answers within {DIAL_TIMEOUT_S:g} s")


def _greet(session: str) -> Reached:
    """Ask an engine for its description, as Mooncake does before its first write, and see whether data may come in."""
    name, _, port = session.rpartition(":")
    host = name.strip("[]")
    try:
        data_port = ask(host, int(port)).data_port
    except (ConnectorError, ValueError) as exc:
        return Reached(problem=str(exc))
    try:
        if data_port:
            socket.create_connection((host, data_port), timeout=GREET_TIMEOUT_S).close()
    except OSError as exc:
        return Reached(problem=f"the data port {host}:{data_port} is not reached: {exc}")
    return Reached()
