"""Asks one part of the connector one question, on a socket of its own.

Where the part is on another host, the question goes through an encrypted connection: both ends hold the cluster secret.
While that is being replaced, the listener may have the key of either: both are tried at once, and one leads nowhere.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import zmq
import zmq.asyncio

from contracts.secret import ClusterSecret
from kv_connector.side_channel_sockets import curve_keys
from kv_connector.status_doors import CLIENT_KEY, FAR_SUFFIX, SERVER_KEY
from node.errors import ConnectorSilentError


class _Door(NamedTuple):
    endpoint: str
    server_key: bytes = b""  # of an encrypted connection


class Asker:
    """Asks for a JSON object."""

    def __init__(self, timeout_s: float, secret: ClusterSecret | None = None) -> None:
        """Open nothing yet; without a secret, other hosts cannot be asked."""
        self._timeout_s = timeout_s
        self._secret = secret
        self._context: zmq.asyncio.Context | None = None

    async def ask(self, path: Path, *question: bytes) -> dict[str, Any]:
        """Return the answer of what listens at `path`, a socket or the file of an address.

        Raises:
            ConnectorSilentError: there is none in time, or an error.
        """
        if self._context is None:
            self._context = zmq.asyncio.Context()
        doors = self._far_doors(path) if path.suffix == FAR_SUFFIX else [_Door(f"ipc://{path}")]
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = json.loads(await _first(self._context, doors, question, self._secret))
        except (TimeoutError, ValueError) as exc:
            raise ConnectorSilentError(f"the connector did not answer at {path}") from exc
        if not isinstance(answer, dict) or "error" in answer:
            raise ConnectorSilentError(f"the connector gave no answer at {path}, but {answer}")
        return answer

    def stop(self) -> None:
        """Close everything; idempotent."""
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _far_doors(self, path: Path) -> list[_Door]:
        try:
            address = path.read_text()
        except OSError as exc:
            raise ConnectorSilentError(f"the address of a rank cannot be read: {exc}") from exc
        if self._secret is None:
            raise ConnectorSilentError(f"the rank at {address} answers holders of the cluster secret alone")
        return [_Door(address, curve_keys(key).public) for key in self._secret.accepted(SERVER_KEY)]


async def _first(
    context: zmq.asyncio.Context, doors: Sequence[_Door], question: Sequence[bytes], secret: ClusterSecret | None
) -> bytes:
    """Return the first answer."""
    if len(doors) == 1:
        return await _ask(context, doors[0], question, secret)
    tasks = [asyncio.create_task(_ask(context, door, question, secret)) for door in doors]
    try:
        answered, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return answered.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(
    context: zmq.asyncio.Context, door: _Door, question: Sequence[bytes], secret: ClusterSecret | None
) -> bytes:
    with context.socket(zmq.REQ) as asker:
        asker.setsockopt(zmq.LINGER, 0)
        if secret is not None and door.server_key:
            asker.curve_serverkey = door.server_key
            asker.curve_publickey, asker.curve_secretkey = curve_keys(secret.derive(CLIENT_KEY))
        asker.connect(door.endpoint)
        await asker.send_multipart(question)
        answer: bytes = await asker.recv()
        return answer
