"""A connection between the first rank of a node and each rank on another host; when it breaks, both ends know.

The kernels watch it, not the processes: one that ends closes it, however it ends, and a host that has vanished is
noticed after about `SILENT_S`. A process that is merely slow is not taken for gone.

Either end proves that it holds the cluster secret. Everybody else is hung up on, and as soon as all ranks are there,
no process can connect any more.
"""

import hmac
import logging
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.errors import ConnectorError

logger = logging.getLogger(__name__)

SILENT_S: Final = 10  # of a host that does not acknowledge anything
JOIN_S: Final = 60.0  # for all ranks to connect; they set out together
_GREETING_S: Final = 5.0  # for one connection's greeting, in all
_PROBES: Final = 4
_PURPOSE: Final = "lifeline"
_NONCE_BYTES: Final = 32
_FAREWELL: Final = b"B"
_INDEX: Final = struct.Struct("!I")
_GREETING: Final = _INDEX.size + 2 * _NONCE_BYTES

Lost = Callable[[str, bool], None]  # which rank; whether it took its leave


class RankMonitor:
    """The first rank's end of the connections: accepts the other hosts' ranks and watches them."""

    def __init__(self, host: str, secret: ClusterSecret) -> None:
        """Listen on a port of the system's choice. Raises `OSError`: the address is not this host's."""
        self._secret = secret
        self._listening = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        self._ends: dict[int, socket.socket] = {}
        self._watch: _Watch | None = None

    def wait_for(self, ranks: set[int], lost: Lost, timeout_s: float = JOIN_S) -> None:
        """Wait for these ranks, then watch them. Raises `ConnectorError`: some did not come, or prove themselves."""
        deadline = time.monotonic() + timeout_s
        with self._listening:
            while missing := ranks - set(self._ends):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise ConnectorError(
                        f"ranks {', '.join(map(str, sorted(missing)))} on other hosts did not connect within {timeout_s:g} s"
                    )
                self._listening.settimeout(left_s)
                try:
                    end, _ = self._listening.accept()
                except TimeoutError:
                    continue
                self._admit(end, missing, deadline)
        self._watch = _Watch({end: f"rank {index}" for index, end in self._ends.items()}, lost)

    def close(self) -> None:
        self._listening.close()
        if self._watch is not None:
            self._watch.close()
        for end in self._ends.values():
            end.close()

    def _admit(self, end: socket.socket, missing: set[int], deadline: float) -> None:
        until_s = min(time.monotonic() + _GREETING_S, deadline)
        try:
            end.settimeout(_GREETING_S)
            nonce = secrets.token_bytes(_NONCE_BYTES)
            end.sendall(nonce)
            greeting = _receive(end, _GREETING, until_s)
            (index,) = _INDEX.unpack_from(greeting)
            theirs, proof = greeting[_INDEX.size : -_NONCE_BYTES], greeting[-_NONCE_BYTES:]
            said = b"rank" + nonce + greeting[:-_NONCE_BYTES]
            keys = self._secret.accepted(_PURPOSE)
            key = next((key for key in keys if hmac.compare_digest(_proof(key, said), proof)), None)
            if key is None or index not in missing:
                end.close()
                if index in missing:  # only a rank sends such a greeting
                    raise ConnectorError(f"rank {index}, on another host of this node, holds another cluster secret")
                return
            end.sendall(_proof(key, b"hub" + theirs))
        except OSError:  # gone, too slow, or no rank at all
            end.close()
            return
        _keep_alive(end)
        self._ends[index] = end


class RankLink:
    """The end of a rank on another host: connects to the first rank and watches it."""

    def __init__(self, address: tuple[str, int], secret: ClusterSecret, index: int, lost: Lost) -> None:
        """Connect to the hub, then watch it. Raises `ConnectorError`: it is not reached, or holds another secret."""
        self._socket = _connect(address, secret, index)
        _keep_alive(self._socket)
        self._watch = _Watch({self._socket: "the node's first rank"}, lost)

    def close(self) -> None:
        self._watch.close()
        self._socket.close()


def _connect(address: tuple[str, int], secret: ClusterSecret, index: int) -> socket.socket:
    place = f"{address[0]}:{address[1]}"
    key, until_s = secret.derive(_PURPOSE), time.monotonic() + JOIN_S
    greeting = _INDEX.pack(index) + secrets.token_bytes(_NONCE_BYTES)
    with ExitStack() as failed:
        try:
            connection = failed.enter_context(socket.create_connection(address, timeout=JOIN_S))
            nonce = _receive(connection, _NONCE_BYTES, until_s)
            connection.sendall(greeting + _proof(key, b"rank" + nonce + greeting))
            answer = _receive(connection, _NONCE_BYTES, until_s)
        except OSError as exc:
            raise ConnectorError(
                f"the node's first host did not let this one in at {place}: it holds another cluster secret, or is not "
                f"reached ({exc})"
            ) from exc
        if not hmac.compare_digest(answer, _proof(key, b"hub" + greeting[_INDEX.size :])):
            raise ConnectorError(f"what answers at {place} does not hold this cluster secret")
        failed.pop_all()
    return connection


class _Watch:
    """A thread that sees connections break."""

    def __init__(self, ends: dict[socket.socket, str], lost: Lost) -> None:
        self._ends = ends
        self._lost = lost
        self._closing = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="baton-lifeline", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say farewell and stop watching. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            for end in self._ends:
                with suppress(OSError):  # gone before us
                    end.send(_FAREWELL)
        self._wake.close()
        self._thread.join()
        self._woken.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for end in self._ends:
                end.setblocking(False)
                selector.register(end, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select():
                    if isinstance(key.fileobj, socket.socket) and key.fileobj in self._ends:
                        self._read(key.fileobj)

    def _read(self, end: socket.socket) -> None:
        try:
            word = end.recv(1)
        except BlockingIOError:
            return
        except OSError:
            word = b""
        if not self._closing.is_set():
            self._closing.set()
            self._lost(self._ends[end], word == _FAREWELL)


def _proof(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, "sha256")


def _receive(connection: socket.socket, size: int, until_s: float) -> bytes:
    """Return so many bytes. Raises `OSError`: the other side hung up, or they are not there by then (time.monotonic)."""
    received = b""
    while len(received) < size:
        if (left_s := until_s - time.monotonic()) <= 0:
            raise TimeoutError("it was too slow")
        connection.settimeout(left_s)
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("it hung up")
        received += part
    return received


def _keep_alive(connection: socket.socket) -> None:
    interval_s = SILENT_S // (_PROBES + 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    # Nothing is probed while something sent is not acknowledged; without this that would last for a quarter of an hour.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1_000)
