"""Asks one part of the connector one question, on a socket of its own.

Where the part is on another host, the question goes through an encrypted connection: both ends hold the cluster secret.
While that is being replaced, the listener may have the key of either: both are tried at once, and one leads nowhere.

ZMQ does not say why no answer comes, so after a time-out the kernel is asked: it takes connections for a process that
is stopped or busy, and refuses them where the process has ended.
"""

import asyncio
import errno
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import zmq
import zmq.asyncio

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.sockets import curve_keys
from baton.kv_connector.control.status_endpoints import CLIENT_KEY, FAR_SUFFIX, SERVER_KEY
from baton.node.errors import ConnectorFailedError, ConnectorSilentError

_REFUSAL_TIMEOUT_S: Final = 0.3  # for the kernel of another host to refuse a connection
_GONE: Final = frozenset((errno.ECONNREFUSED, errno.ENOENT))  # no process listens there


class _Door(NamedTuple):
    endpoint: str
    server_key: bytes = b""  # of an encrypted connection


class ControlClient:
    """Asks the connector's processes for snapshots, which are JSON objects."""

    def __init__(self, timeout_s: float, secret: ClusterSecret | None = None) -> None:
        """Open nothing yet; without a secret, other hosts cannot be asked."""
        self._timeout_s = timeout_s
        self._secret = secret
        self._context: zmq.asyncio.Context | None = None

    def start(self) -> None:
        """Have libzmq open what it aborts the process for when it cannot: a context's descriptors. Idempotent."""
        if self._context is None:
            self._context = zmq.asyncio.Context()
            zmq.Context.shadow(self._context).socket(zmq.REQ).close()  # libzmq starts a context with its first socket

    async def ask_worker(self, path: Path, *question: bytes, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the answer of what listens at `path`, a socket or the file of an address.

        Raises:
            ConnectorSilentError: there is none in time (`timeout_s`, else the client's), although the process is there.
            ConnectorFailedError: the process is gone, or the answer is an error.
        """
        self.start()
        assert self._context is not None
        doors = self._far_doors(path) if path.suffix == FAR_SUFFIX else [_Door(f"ipc://{path}")]
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                answer = json.loads(await self._first(self._context, doors, question))
        except TimeoutError as exc:
            if await _is_refused(doors[0].endpoint):
                raise ConnectorFailedError(f"the connector's process at {path} is gone") from exc
            raise ConnectorSilentError(f"the connector did not answer at {path}") from exc
        except zmq.ZMQError as exc:  # EMFILE: no descriptor is left for the socket
            raise ConnectorSilentError(f"the connector cannot be asked at {path}: {exc}") from exc
        except ValueError as exc:
            raise ConnectorFailedError(f"the connector's answer at {path} is no JSON") from exc
        if not isinstance(answer, dict) or "error" in answer:
            raise ConnectorFailedError(f"the connector gave no answer at {path}, but {answer}")
        return answer

    def stop(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _far_doors(self, path: Path) -> list[_Door]:
        try:
            address = path.read_text()
        except OSError as exc:
            raise ConnectorFailedError(f"the address of a rank cannot be read: {exc}") from exc
        if self._secret is None:
            raise ConnectorFailedError(f"the rank at {address} answers holders of the cluster secret alone")
        return [_Door(address, curve_keys(key).public) for key in self._secret.accepted(SERVER_KEY)]

    async def _first(self, context: zmq.asyncio.Context, doors: Sequence[_Door], question: Sequence[bytes]) -> bytes:
        tasks = [asyncio.create_task(self._ask(context, door, question)) for door in doors]
        try:
            answered, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return answered.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, context: zmq.asyncio.Context, door: _Door, question: Sequence[bytes]) -> bytes:
        with context.socket(zmq.REQ) as asker:
            asker.setsockopt(zmq.LINGER, 0)
            if self._secret is not None and door.server_key:
                asker.curve_serverkey = door.server_key
                asker.curve_publickey, asker.curve_secretkey = curve_keys(self._secret.derive(CLIENT_KEY))
            asker.connect(door.endpoint)
            await asker.send_multipart(question)
            answer: bytes = await asker.recv()
            return answer


async def _is_refused(endpoint: str) -> bool:
    """Whether the kernel refuses connections to an endpoint; one that does not say within a moment does not."""
    address: Any = endpoint.removeprefix("ipc://")
    family = socket.AF_UNIX
    if endpoint.startswith("tcp:"):
        parts = urlsplit(endpoint)
        address, family = (parts.hostname, parts.port), socket.AF_INET6 if parts.netloc[0] == "[" else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as caller:
            caller.setblocking(False)
            async with asyncio.timeout(_REFUSAL_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(caller, address)
    except OSError as exc:  # TimeoutError is one; EAGAIN: the queue of a process that accepts nothing is full
        return exc.errno in _GONE
    return False
