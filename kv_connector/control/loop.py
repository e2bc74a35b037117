"""The control channel between ranks: small messages over ZeroMQ, encrypted, lossy on purpose.

A prefill rank *listens* (one ROUTER), a decode rank *dials* (one DEALER per peer). A message is one frame of bytes, at
most 2 MiB. What cannot be sent soon, as to a peer that is not there, is dropped: the hand-off's `Beat` makes up for it.

Only peers with the cluster secret can talk: the server's and the clients' Curve25519 keys are derived from it, and a
client must know the server's public key, which is never sent or shown anywhere. When the first of two secrets changes,
the listener opens again with its key: its peers lose their connections for a moment, as on any bad line.

ZeroMQ sockets belong to one thread. `ControlLoop` is that thread; all others hand it messages through a queue.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Protocol

import zmq

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.sockets import MAX_PAYLOAD_BYTES, ControlClient, ControlServer, Wakeup
from baton.kv_connector.errors import ConnectorError, ProtocolError
from baton.kv_connector.telemetry.refusals import LOG_EVERY_S, Refusals

logger = logging.getLogger(__name__)

PeerKey = tuple[Literal["dial"], str] | tuple[Literal["accept"], bytes]

STOP_S = 5.0  # until a handler that runs has returned; they take milliseconds
_BURST = 64  # messages taken from one socket before the others get their turn


class ControlHandler(Protocol):
    """What the loop calls, always in its own thread. An exception is logged and ends that call only."""

    def on_payload(self, peer: PeerKey, payload: bytes) -> None:
        """A message of `peer`, to whom `send(peer, …)` answers."""
        ...

    def on_tick(self) -> None:
        """Every `tick_s`."""
        ...

    def on_disconnect(self, peer: PeerKey) -> None:
        """The connection to a dialled peer has broken. A hint: it may come late or not at all."""
        ...


class ControlLoop:
    """The thread that owns all control sockets of a rank."""

    def __init__(
        self,
        handler: ControlHandler,
        tick_s: float,
        *,
        secret: ClusterSecret | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """Allocate; `listen` binds, `start` starts the thread.

        `tick_s`: the longest time between two calls of `on_tick`. `secret`: for dialling; a loop that only listens gets
        it with `listen`. `refusals` counts what is refused before it becomes a message.
        """
        self._handler = handler
        self._tick_s = tick_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._secret = secret
        self._refusals = refusals or Refusals(logger)
        self._server: ControlServer | None = None
        self._endpoint: tuple[str, int] | None = None  # where to listen: host and port
        self._logged: dict[tuple[str, int], float] = {}  # place in the code that failed → when that was told, s
        self._clients: dict[str, ControlClient] = {}
        self._poller = zmq.Poller()
        self._wakeup = Wakeup()
        self._actions: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._stop_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="baton-control", daemon=True)

    # --- any thread ---

    def listen(self, host: str, port: int, secret: ClusterSecret) -> str:
        """Accept peers on `host:port`, before `start`; port 0 picks one. Returns `tcp://host:port`.

        Raises `ConnectorError` if the address cannot be bound.
        """
        self._secret = secret
        self._server = ControlServer(host, port, secret, self._context, self._refusals)
        self._endpoint = host, self._server.port
        return self._server.address

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close everything. Idempotent; works without a start; not for the loop's own thread.

        A handler that does not return keeps its sockets: they are not to be closed under a thread that uses them.
        """
        with self._stop_lock:
            self._stopping = True
            self._wakeup.set()
            if self._thread.is_alive():
                self._thread.join(timeout=STOP_S)
            if self._thread.is_alive():
                logger.error("the control channel is stuck in a handler and was not closed")
                return
            self._close()

    def send(self, peer: PeerKey, payload: bytes) -> None:
        """Send a message, dialling on first use; drop it if the peer is not there. `ProtocolError`: it is too large."""
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ProtocolError(f"a control message of {len(payload)} B exceeds {MAX_PAYLOAD_BYTES} B")
        self._post(lambda: self._send(peer, payload))

    def forget(self, peer: PeerKey) -> None:
        """Close the connection to a dialled peer. Messages posted to it later dial again."""
        self._post(lambda: self._forget(peer))

    def _post(self, action: Callable[[], None]) -> None:
        self._actions.append(action)
        if threading.get_ident() != self._thread.ident:  # the loop itself looks after each callback
            self._wakeup.set()

    # --- the loop's thread ---

    def _run(self) -> None:
        self._poller.register(self._wakeup.descriptor, zmq.POLLIN)
        if self._server:
            self._poller.register(self._server.socket, zmq.POLLIN)
        next_tick = time.monotonic()
        while not self._stopping:
            left_ms = math.ceil((next_tick - time.monotonic()) * 1000)
            ready = dict(self._poller.poll(max(left_ms, 0)))
            if self._wakeup.descriptor in ready:
                self._wakeup.clear()
            self._receive(ready)
            if time.monotonic() >= next_tick:
                self._receive(dict(self._poller.poll(0)))  # what came while we were busy shows who is alive
                self._call(self._keep_listening)
                self._call(self._handler.on_tick)
                next_tick = time.monotonic() + self._tick_s
            self._act()

    def _receive(self, ready: dict[object, int]) -> None:
        if self._server and self._server.socket in ready:
            for identity, payload in self._server.receive(_BURST):
                self._call(self._handler.on_payload, ("accept", identity), payload)
                self._act()  # or the answers to a burst would pile up
        for address, client in list(self._clients.items()):
            if self._clients.get(address) is not client:
                continue  # forgotten since
            if client.socket in ready:
                for payload in client.receive(_BURST):
                    self._call(self._handler.on_payload, ("dial", address), payload)
                client.flush()
            if client.monitor in ready and client.lost_connection():
                self._call(self._handler.on_disconnect, ("dial", address))
            self._watch(client)
            self._act()

    def _act(self) -> None:
        while self._actions:
            self._call(self._actions.popleft())

    def _call(self, function: Callable[..., None], *args: object) -> None:
        try:
            function(*args)
        except Exception as exc:  # thread boundary: the peers still need this thread
            place, now = _place(exc.__traceback__), time.monotonic()
            if now - self._logged.get(place, -math.inf) >= LOG_EVERY_S:  # a peer may make it fail as often as it likes
                self._logged[place] = now
                logger.exception("control loop: a callback failed")

    def _keep_listening(self) -> None:
        """Follow the secret, and try again where that failed: what listened there before may need a moment to go."""
        if self._endpoint is None or self._secret is None:
            return
        if self._server is not None:
            self._server.count_refused()
            if self._server.key == self._secret.derive("control-channel/server"):
                return
            self._poller.unregister(self._server.socket)
            self._server.close()
            self._server = None
        self._server = ControlServer(*self._endpoint, self._secret, self._context, self._refusals)
        self._poller.register(self._server.socket, zmq.POLLIN)
        logger.info("listening for control messages with another secret on %s", self._server.address)

    def _send(self, peer: PeerKey, payload: bytes) -> None:
        if peer[0] == "accept":
            if self._server:
                self._server.send(peer[1], payload)
            return
        client = self._clients.get(peer[1]) or self._dial(peer[1])
        client.send(payload)
        self._watch(client)

    def _dial(self, address: str) -> ControlClient:
        if self._secret is None:
            raise ConnectorError("this control loop was made without a secret and cannot dial")
        client = self._clients[address] = ControlClient(address, self._secret, self._context, self._refusals)
        self._poller.register(client.monitor, zmq.POLLIN)
        return client

    def _watch(self, client: ControlClient) -> None:
        """Ask for writability only while something waits: a writable socket would wake the loop for ever."""
        self._poller.register(client.socket, zmq.POLLIN | (zmq.POLLOUT if client.waiting else 0))

    def _forget(self, peer: PeerKey) -> None:
        if peer[0] == "dial" and (client := self._clients.pop(peer[1], None)):
            self._poller.unregister(client.socket)
            self._poller.unregister(client.monitor)
            client.close()

    def _close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        if self._server:
            self._server.close()
        self._wakeup.close()
        self._context.destroy(linger=0)


def _place(traceback: TracebackType | None) -> tuple[str, int]:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno) if traceback else ("", 0)
