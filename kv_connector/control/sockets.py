"""The two kinds of control socket, and how another thread wakes the one that polls them.

With two cluster secrets (see `contracts/secret.py`) a listener holds the keys of the first, and a dialler tries its own
one after the other: so two processes meet if the dialler knows what the listener uses, as for all that a secret makes.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import zmq
from zmq.utils import z85

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.monitor import HANDSHAKE_S, Handshakes, Monitor
from baton.kv_connector.errors import ConnectorConfigError, ConnectorError
from baton.kv_connector.telemetry.refusals import Refusals, Refused

MAX_PAYLOAD_BYTES = 2 * 1024 * 1024  # the longest lists that `protocol/messages.py` allows take less than 1.4 MiB

_MAX_FRAME_BYTES = 2 * MAX_PAYLOAD_BYTES  # libzmq hangs up on larger ones before it has read them
_SEND_HIGH_WATER = 1024  # messages per peer
_RECEIVE_HIGH_WATER = 64  # … here few, since a hostile peer's may all be of the largest size
_UNHEARD_MS = 3_000  # unacknowledged for so long, a connection is replaced
_UNHEARD_S = 0.9 * _UNHEARD_MS / 1_000  # a connection that breaks after such a silence was given up by us
_DIAL_MS = 1_000  # an attempt at a connection; then the next one
_HOLD_S = 1.0  # how long a message waits for a connection that is being made
_HELD = 256  # … and how many do
_PATIENCE_S = (0.05, 1.0)  # how long a dialler stays with a key that fails: the first and the longest time

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


class CurveKeys(NamedTuple):
    """One side's keys of an encrypted ZeroMQ connection."""

    public: bytes  # Z85
    secret: bytes  # Z85


def curve_keys(secret: bytes) -> CurveKeys:
    if not zmq.has("curve"):
        raise ConnectorConfigError("this build of libzmq has no CURVE encryption, which the control channel needs")
    private = z85.encode(secret)
    return CurveKeys(zmq.curve_public(private), private)


def listen(socket: Socket, host: str, port: int, keys: CurveKeys) -> int:
    """Bind to a port, 0 for a free one, for peers that know our public key; returns the port."""
    socket.curve_secretkey, socket.curve_publickey, socket.curve_server = keys.secret, keys.public, True
    socket.bind(f"tcp://{host}:{port or '*'}")
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)  # pyzmq's type covers every option
    return int(endpoint.rstrip(bytes(1)).rpartition(b":")[2])


def _open(context: Context, kind: int, events: int) -> tuple[Socket, Monitor]:
    socket = context.socket(kind)
    try:
        _set_options(socket)
        return socket, Monitor(socket, events)
    except zmq.ZMQError:
        socket.close()
        raise


def _set_options(socket: Socket) -> None:
    socket.linger = 0
    socket.sndhwm, socket.rcvhwm = _SEND_HIGH_WATER, _RECEIVE_HIGH_WATER
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1_000))  # ms
    # After an outage TCP alone would say nothing for as long again: it tries ever more rarely, and so do its first
    # packets.
    socket.setsockopt(zmq.TCP_MAXRT, _UNHEARD_MS)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, _DIAL_MS)
    for option, value in ((zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 30), (zmq.TCP_KEEPALIVE_INTVL, 10)):
        socket.setsockopt(option, value)  # s: the descriptor of a peer whose machine has vanished comes back


class ControlServer:
    """A ROUTER that peers dial. Use it from one thread at a time."""

    def __init__(
        self, bind_host: str, port: int, secret: ClusterSecret, context: Context, refusals: Refusals | None = None
    ) -> None:
        """Bind; port 0 picks a free one. Raises `ConnectorError` if the address cannot be bound."""
        self._refusals = refusals
        self._handshakes = Handshakes()
        self.key = secret.derive("control-channel/server")
        keys = curve_keys(self.key)
        self.socket, self._monitor = _open(context, zmq.ROUTER, Monitor.ACCEPTING)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unknown identity is an error, which we count as a loss
        try:
            self.port = listen(self.socket, bind_host, port, keys)
        except zmq.ZMQError as exc:
            self.close()
            raise ConnectorError(f"cannot listen for control messages on tcp://{bind_host}:{port}: {exc}") from exc
        self.address = f"tcp://{bind_host}:{self.port}"

    def receive(self, limit: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield up to `limit` waiting messages: identity of the peer, payload."""
        for frames in _receive(self.socket, limit):
            if _is_message(frames[1:], self._refusals):
                yield frames[0], frames[1]

    def send(self, identity: bytes, payload: bytes) -> bool:
        """Send without waiting; False if the peer has gone or does not read."""
        try:
            self.socket.send_multipart([identity, payload], flags=zmq.NOBLOCK)
        except zmq.ZMQError:  # EHOSTUNREACH, EAGAIN
            return False
        return True

    def count_refused(self) -> None:
        """Count the connections that came to nothing. Call it now and then."""
        now = time.monotonic()
        for event in self._monitor.events():
            self._handshakes.note(event, now)
        if (failed := self._handshakes.failed(now)) and self._refusals:
            self._refusals.count(Refused.HANDSHAKE, "no peer of this cluster, or one with another secret", failed)

    def close(self) -> None:
        if not self.socket.closed:
            self._monitor.close()
            self.socket.close()


class ControlClient:
    """A DEALER that dials one peer, and dials again for as long as it lives. Use it from one thread at a time."""

    def __init__(self, address: str, secret: ClusterSecret, context: Context, refusals: Refusals | None = None) -> None:
        """Begin to connect to `address`, `tcp://host:port`; raises `ConnectorError` if that is no address."""
        self._address = address
        self._secret = secret
        self._refusals = refusals
        self._key = secret.derive("control-channel/server")  # that we try; the listener's, if it lets us in
        self._patience_s = 0.0
        self._next_key_at = 0.0  # s, monotonic
        self._unheard_since = math.inf  # s, monotonic: the first message sent since the peer was heard
        keys = curve_keys(secret.derive("control-channel/client"))
        self.socket, self._monitor = _open(context, zmq.DEALER, Monitor.DIALLING)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)  # queue nothing for a connection that is not there
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)  # ms, doubling up to the next
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
        self.socket.curve_secretkey, self.socket.curve_publickey = keys.secret, keys.public
        self.monitor = self._monitor.pair
        try:
            self._connect()
        except zmq.ZMQError as exc:
            self.close()
            raise ConnectorError(f"cannot dial {address}: {exc}") from exc
        self._held: deque[tuple[float, bytes]] = deque(maxlen=_HELD)

    @property
    def waiting(self) -> bool:
        return bool(self._held)

    def receive(self, limit: int) -> Iterator[bytes]:
        for frames in _receive(self.socket, limit):
            self._unheard_since = math.inf
            if _is_message(frames, self._refusals):
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
                    self._unheard_since = min(self._unheard_since, since)
            except zmq.ZMQError:  # EAGAIN: no connection yet, or a full one
                return
            self._held.popleft()

    def lost_connection(self) -> bool:
        """Take in what happened to the connection; return whether the peer has broken one since the last call.

        One that was given up since nothing came back does not count: it says nothing that silence does not.
        """
        lost = False
        for event in self._monitor.events():
            if event.kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._patience_s = 0.0
            elif event.kind == zmq.EVENT_DISCONNECTED:
                lost = lost or time.monotonic() - self._unheard_since < _UNHEARD_S
            elif event.is_failed_handshake:
                self._try_another_key(time.monotonic())
        return lost

    def handshake(self, timeout_s: float) -> bool | None:
        """Wait until the peer has let us in, for `baton doctor`; False: it refuses every key; None: no peer answers."""
        deadline, refused = time.monotonic() + timeout_s, False
        last_chance = len(self._secret.accepted("control-channel/server")) == 1
        while (left_s := deadline - time.monotonic()) > 0:
            self.monitor.poll(int(left_s * 1_000) + 1)
            for event in self._monitor.events():
                if event.kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    return True
                if event.is_failed_handshake:
                    refused = True
                    self._try_another_key(time.monotonic())
            if refused and last_chance:
                break
        return False if refused else None

    def close(self) -> None:
        if not self.socket.closed:
            self._monitor.close()  # pyzmq leaves this to the garbage collector; until then the context cannot end
            self.socket.close()

    def _try_another_key(self, now: float) -> None:
        """The peer does not use this key: try the next one, in turn, ever more slowly.

        libzmq dials again by itself, so a key that stays gets further attempts, and the next failure calls us again.
        """
        keys = self._secret.accepted("control-channel/server")
        if now < self._next_key_at or keys == (self._key,):
            return
        at = keys.index(self._key) + 1 if self._key in keys else 0
        if at >= len(keys):
            at, first = 0, _PATIENCE_S[0]
            self._patience_s = min(max(2 * self._patience_s, first), _PATIENCE_S[1])
        self._next_key_at = now + self._patience_s
        self._key = keys[at]
        self.socket.disconnect(self._address)
        self._connect()

    def _connect(self) -> None:
        self.socket.curve_serverkey = curve_keys(self._key).public  # counts for connections made from now on
        self.socket.connect(self._address)


def _is_message(frames: list[bytes], refusals: Refusals | None) -> bool:
    """Whether these are one frame of an allowed size."""
    kind = Refused.MULTIPART if len(frames) != 1 else Refused.OVERSIZED if len(frames[0]) > MAX_PAYLOAD_BYTES else None
    if kind and refusals:
        refusals.count(kind, f"{len(frames)} frames, {sum(map(len, frames))} B")
    return kind is None


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
        self._is_set = False  # spares a system call for each message of a burst

    def set(self) -> None:
        with self._lock:
            if self._open and not self._is_set:
                self._is_set = True
                os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Make it unreadable. What is posted from now on wakes again, so look for work after this, not before."""
        with self._lock:
            if self._open and self._is_set:
                self._is_set = False
                os.eventfd_read(self.descriptor)

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.descriptor)
