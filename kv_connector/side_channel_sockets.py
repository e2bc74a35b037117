"""The two kinds of control socket, and how another thread wakes the one that polls them."""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import zmq
from zmq.utils import z85

from contracts.secret import ClusterSecret
from kv_connector.errors import ConfigError, ConnectorError

MAX_PAYLOAD_BYTES = 16 * 1024 * 1024

_HIGH_WATER = 1024  # messages per peer and direction
_HOLD_S = 1.0  # how long a message waits for a connection that is being made
_HELD = 256  # … and how many do

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


class _Keys(NamedTuple):
    public: bytes  # Z85
    secret: bytes  # Z85


def _keys(secret: ClusterSecret, side: str) -> _Keys:
    if not zmq.has("curve"):
        raise ConfigError("this build of libzmq has no CURVE encryption, which the control channel needs")
    private = z85.encode(secret.derive(f"control-channel/{side}"))
    return _Keys(zmq.curve_public(private), private)


def _socket(context: Context, kind: int) -> Socket:
    socket = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = _HIGH_WATER
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 5_000)  # ms
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    return socket


class ControlServer:
    """A ROUTER that peers dial. Use it from one thread at a time."""

    def __init__(self, bind_host: str, port: int, secret: ClusterSecret, context: Context) -> None:
        """Bind; port 0 picks a free one.

        Raises:
            ConnectorError: the address cannot be bound.
        """
        keys = _keys(secret, "server")
        self.socket = _socket(context, zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unknown identity is an error, which we count as a loss
        self.socket.curve_secretkey, self.socket.curve_publickey = keys.secret, keys.public
        self.socket.curve_server = True
        try:
            self.socket.bind(f"tcp://{bind_host}:{port or '*'}")
        except zmq.ZMQError as exc:
            self.socket.close()
            raise ConnectorError(f"cannot listen for control messages on tcp://{bind_host}:{port}: {exc}") from exc
        endpoint = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)  # pyzmq's type covers every option
        self.address = f"tcp://{bind_host}:{endpoint.rstrip(bytes(1)).rpartition(b':')[2].decode()}"

    def receive(self, limit: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield up to `limit` waiting messages: identity of the peer, payload."""
        for frames in _receive(self.socket, limit):
            if len(frames) == 2:
                yield frames[0], frames[1]

    def send(self, identity: bytes, payload: bytes) -> bool:
        """Send without waiting; False if the peer has gone or does not read."""
        try:
            self.socket.send_multipart([identity, payload], flags=zmq.NOBLOCK)
        except zmq.ZMQError:  # EHOSTUNREACH, EAGAIN
            return False
        return True

    def close(self) -> None:
        """Close. Idempotent."""
        self.socket.close()


class ControlClient:
    """A DEALER that dials one peer, and dials again for as long as it lives. Use it from one thread at a time."""

    def __init__(self, address: str, secret: ClusterSecret, context: Context) -> None:
        """Begin to connect to `address`, `tcp://host:port`.

        Raises:
            ConnectorError: that is no address.
        """
        keys = _keys(secret, "client")
        self.socket = _socket(context, zmq.DEALER)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)  # queue nothing for a connection that is not there
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)  # ms, doubling up to the next
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        self.socket.curve_secretkey, self.socket.curve_publickey = keys.secret, keys.public
        self.socket.curve_serverkey = _keys(secret, "server").public
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            self.socket.connect(address)
        except zmq.ZMQError as exc:
            self.close()
            raise ConnectorError(f"cannot dial {address}: {exc}") from exc
        self._held: deque[tuple[float, bytes]] = deque(maxlen=_HELD)

    @property
    def waiting(self) -> bool:
        """Whether messages wait for the connection."""
        return bool(self._held)

    def receive(self, limit: int) -> Iterator[bytes]:
        """Yield up to `limit` waiting messages."""
        for frames in _receive(self.socket, limit):
            if len(frames) == 1:
                yield frames[0]

    def send(self, payload: bytes) -> None:
        """Send, or hold the message for a moment while the connection is being made."""
        self._held.append((time.monotonic(), payload))
        self.flush()

    def flush(self) -> None:
        """Send what is held, in order, and drop what has been held for too long."""
        oldest = time.monotonic() - _HOLD_S
        while self._held:
            since, payload = self._held[0]
            try:
                if since >= oldest:
                    self.socket.send(payload, flags=zmq.NOBLOCK)
            except zmq.ZMQError:  # EAGAIN: no connection yet, or a full one
                return
            self._held.popleft()

    def lost_connection(self) -> bool:
        """Whether a connection has broken since the last call."""
        return bool(list(_receive(self.monitor, _HIGH_WATER)))

    def close(self) -> None:
        """Close. Idempotent."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close()  # pyzmq leaves this to the garbage collector; until then the context cannot end
            self.socket.close()


def _receive(socket: Socket, limit: int) -> Iterator[list[bytes]]:
    for _ in range(limit):
        try:
            yield socket.recv_multipart(flags=zmq.NOBLOCK)
        except zmq.Again:
            return


class Wakeup:
    """An eventfd: many calls of `set` are one wake-up. `set` may be called from any thread, also after `close`."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # `set` must not write to a descriptor that has been closed and given away
        self._open = True

    def set(self) -> None:
        """Make the descriptor readable."""
        with self._lock:
            if self._open:
                os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Make it unreadable."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.descriptor)
