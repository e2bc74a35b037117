"""What a connector side and the node that runs it say to each other, over sockets in the runtime directory.

The node's API lives in another process. `StatusServer` answers its questions and takes its one command, to cancel
transfers; `OutcomeSender` tells it of each request that had to be recomputed, for a response header.
"""

import json
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import zmq

from baton.kv_connector.control.sockets import Socket, Wakeup
from baton.kv_connector.control.status_endpoints import Door, IpcEndpoint, refuse_long
from baton.kv_connector.errors import ConnectorError

logger = logging.getLogger(__name__)

REQUEST = b"snapshot"
CANCEL = b"cancel"  # followed by a second frame: a JSON list of transfer ids
TIMELINE = b"timeline"  # followed by a second frame: a transfer id

_STOP_S = 5.0  # how long a stop waits for a snapshot that is being taken


class StatusServer:
    """Answers `b"snapshot"`, `b"cancel"` and `b"timeline"` with JSON on a REP socket."""

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], dict[str, Any]],
        cancel: Callable[[list[str]], int] | None = None,
        timeline: Callable[[str], dict[str, Any]] | None = None,
        door: Door | None = None,
    ) -> None:
        """Make the server; `start` binds it.

        Args:
            path: Of the socket; for a rank on another host it only names it.
            snapshot: Called in this server's thread; an exception of it is answered as `{"error": …}`.
            cancel: Likewise; ends transfers by id and returns how many of them were open. A side that has none refuses.
            timeline: Likewise; tells of one transfer, by id.
            door: Where to listen, if not at `path`.
        """
        self._path = path
        self._door = door or IpcEndpoint(path)
        self._snapshot = snapshot
        self._cancel = cancel
        self._timeline = timeline
        self._wakeup = Wakeup()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._stopping = False
        self._stop_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="baton-status", daemon=True)

    def start(self) -> None:
        """Bind and start the thread, once; raises `ConnectorError` if the path cannot be bound."""
        if self._socket is not None:
            return
        self._socket = self._door.open(self._context)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and close everything. Idempotent; works without a start."""
        with self._stop_lock:
            self._stopping = True
            self._wakeup.set()
            if self._thread.is_alive():
                self._thread.join(timeout=_STOP_S)
            if self._thread.is_alive():  # it still uses the socket: leave both to the end of the process
                logger.warning("the snapshot for the node on %s did not end within %g s", self._path, _STOP_S)
                return
            if self._socket:
                self._socket.close()
            self._wakeup.close()
            self._context.term()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wakeup.descriptor, zmq.POLLIN)
        socket = self._socket
        if socket is not None:  # start() has bound it
            poller.register(socket, zmq.POLLIN)
        while not self._stopping:
            ready = dict(poller.poll(self._door.look_again_ms))
            if socket is not None and socket in ready:
                socket.send(self._answer(socket.recv_multipart()))
            if socket is None or self._door.is_outdated():
                socket = self._open_anew(poller)

    def _open_anew(self, poller: zmq.Poller) -> Socket | None:
        """Close the door and open it; None where what listened there needs a moment to go: it is tried again soon."""
        if self._socket is not None:
            poller.unregister(self._socket)
            self._socket.close()
        try:
            self._socket = self._door.open(self._context)
        except ConnectorError as exc:
            logger.warning("not answered for a moment: %s", exc)
            self._socket = None
        else:
            poller.register(self._socket, zmq.POLLIN)
        return self._socket

    def _answer(self, request: list[bytes]) -> bytes:
        try:
            if request == [REQUEST]:
                return _encode(self._snapshot())
            if request[0] == CANCEL and len(request) == 2 and self._cancel is not None:
                return _encode({"open": self._cancel(json.loads(request[1]))})
            if request[0] == TIMELINE and len(request) == 2 and self._timeline is not None:
                return _encode(self._timeline(request[1].decode()))
        except Exception as exc:  # thread boundary: the node must get an answer
            logger.exception("the node's %s failed", request[0])
            return _encode({"error": f"{type(exc).__name__}: {exc}"})
        return _encode({"error": "unknown request"})


class OutcomeSender:
    """Tells the node how a transfer ended, without ever waiting. For one thread.

    When `send` returns, the line is in the node's receive buffer: before the scheduler can hand out the request's first
    token. (A ZeroMQ socket has a thread in between, and no order with the socket that carries the tokens.)
    """

    def __init__(self, path: Path) -> None:
        """Send to the node's socket at `path`, whether it is there yet or not."""
        refuse_long(path)
        self._path = str(path)
        self._socket: socket.socket | None = None
        self._closed = False

    def send(self, transfer_id: str, outcome: Literal["recomputed", "local"], reason: str) -> bool:
        """Send one outcome; False if the node does not listen or does not keep up."""
        return self._send({"transfer_id": transfer_id, "outcome": outcome, "reason": reason})

    def send_reserved(self, transfer_id: str) -> bool:
        return self._send({"transfer_id": transfer_id, "outcome": "reserved"})

    def _send(self, message: dict[str, Any]) -> bool:
        line = _encode(message)
        for _ in range(0 if self._closed else 2):  # twice: the node's API process may have started again
            try:
                self._socket = self._socket or self._connect()
                self._socket.send(line)
            except BlockingIOError:  # the buffer is full
                return False
            except OSError:
                self._disconnect()
            else:
                return True
        return False

    def close(self) -> None:
        self._closed = True
        self._disconnect()

    def _connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.setblocking(False)
        try:
            made.connect(self._path)
        except OSError:
            made.close()
            raise
        return made

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
