"""Where a status server listens.

`IpcEndpoint`: a socket in the node's folder. `TcpEndpoint`: a port, for a rank on another host than the node's API. A
process that dials it must hold the cluster secret. Its address is written next to where the socket would be;
`worker_side/hosts.py` carries such files to the node's first host.
"""

from pathlib import Path
from typing import Protocol

import zmq

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.sockets import Context, Socket, curve_keys, listen
from baton.kv_connector.errors import ConnectorError

FAR_SUFFIX = ".addr"  # of the file with an address, which a socket here would have ".sock" in place of
SERVER_KEY = "status-channel/server"  # purposes, for `ClusterSecret.derive`
CLIENT_KEY = "status-channel/client"

_MAX_PATH_BYTES = 107  # of a Unix socket's address
_MAX_QUESTION_BYTES = 1 << 20


class Door(Protocol):
    """Opens a REP socket."""

    @property
    def look_again_ms(self) -> int | None:
        """How often to ask `is_outdated`; None: never."""
        ...

    def open(self, context: Context) -> Socket:
        """Bind; raises `ConnectorError`."""
        ...

    def is_outdated(self) -> bool:
        """Whether it has to be closed and opened again."""
        ...


class IpcEndpoint:
    """A socket that this user alone may use."""

    look_again_ms: int | None = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, context: Context) -> Socket:
        refuse_long(self._path)
        socket = _socket(context)
        try:
            socket.bind(f"ipc://{self._path}")
            self._path.chmod(0o600)
        except (zmq.ZMQError, OSError) as exc:
            socket.close()
            raise ConnectorError(f"cannot answer the node on {self._path}: {exc}") from exc
        return socket

    def is_outdated(self) -> bool:
        return False


class TcpEndpoint:
    """A port of its own choice, on one address of this host; its file takes the place of the socket at `path`."""

    look_again_ms: int | None = 1_000

    def __init__(self, path: Path, host: str, secret: ClusterSecret) -> None:
        self._file = path.with_suffix(FAR_SUFFIX)
        self._host = host
        self._secret = secret
        self._key = b""
        self._port = 0

    def open(self, context: Context) -> Socket:
        key = self._secret.derive(SERVER_KEY)
        keys = curve_keys(key)
        socket = _socket(context)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_QUESTION_BYTES)
        try:
            self._port = listen(socket, self._host, self._port, keys)  # the same again if there was one
            self._file.write_text(f"tcp://{self._host}:{self._port}")
        except (zmq.ZMQError, OSError) as exc:
            socket.close()
            raise ConnectorError(f"cannot answer the node on {self._host}:{self._port}: {exc}") from exc
        self._key = key
        return socket

    def is_outdated(self) -> bool:
        return self._key != self._secret.derive(SERVER_KEY)


def refuse_long(path: Path) -> None:
    """Raise `ConnectorError` if a socket's path is too long."""
    if len(bytes(path)) > _MAX_PATH_BYTES:
        raise ConnectorError(f"{path} is too long for a socket (at most {_MAX_PATH_BYTES} bytes)")


def _socket(context: Context) -> Socket:
    socket = context.socket(zmq.REP)
    socket.linger = 0
    return socket
