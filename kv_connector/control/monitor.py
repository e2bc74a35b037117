"""What libzmq tells about the connections of a control socket: who got through the handshake, and who did not."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

HANDSHAKE_S = 3.0  # a connection that is not through by then is closed

_numbers = itertools.count()  # of a process; libzmq frees an address some time after its monitor was closed

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Event(NamedTuple):
    """One thing that happened to a connection."""

    kind: int  # zmq.EVENT_…
    value: int  # the file descriptor, for EVENT_ACCEPTED and EVENT_DISCONNECTED

    @property
    def is_failed_handshake(self) -> bool:
        """Whether the other side does not hold our secret, or is no peer at all."""
        return bool(self.kind & _FAILED)


class Monitor:
    """The events of one socket. Use it from the socket's thread."""

    ACCEPTING = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
    DIALLING = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _FAILED

    def __init__(self, socket: "zmq.Socket[bytes]", events: int) -> None:
        """Begin to watch; raises `zmq.ZMQError` if no further socket can be made, for want of descriptors."""
        self._socket = socket
        address = f"inproc://baton-monitor-{next(_numbers)}"
        socket.monitor(address, events)
        self.pair = socket.context.socket(zmq.PAIR)
        self.pair.linger = 0
        self.pair.rcvhwm = 0  # a full queue would block libzmq's thread, and after it the thread that closes the socket
        self.pair.connect(address)

    def events(self) -> Iterator[Event]:
        while True:
            try:
                message = parse_monitor_message(self.pair.recv_multipart(flags=zmq.NOBLOCK))
            except zmq.Again:
                return
            yield Event(int(message["event"]), message["value"])

    def close(self) -> None:
        """Stop watching, before the socket is closed. Idempotent."""
        if not self.pair.closed:
            self._socket.monitor(None, 0)
            self.pair.close()


class Handshakes:
    """Counts the connections that ended without getting through the handshake.

    libzmq does not say which connection got through, only that one did. So those that failed are those accepted, less
    those that got through, less those that may still be at it: the ones that are open and younger than `HANDSHAKE_S`.
    """

    def __init__(self) -> None:
        self._open: dict[int, float] = {}  # file descriptor → when accepted, s; oldest first
        self._accepted = self._through = self._told = 0

    def note(self, event: Event, now: float) -> None:
        if event.kind == zmq.EVENT_ACCEPTED:
            self._accepted += 1
            self._open.pop(event.value, None)  # closed without a word, and the number is in use again
            self._open[event.value] = now
        elif event.kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._through += 1
        elif event.kind == zmq.EVENT_DISCONNECTED:
            self._open.pop(event.value, None)

    def failed(self, now: float) -> int:
        """Return how many have failed since the last call; some may be told up to `HANDSHAKE_S` late."""
        young = 0
        for accepted_at in reversed(self._open.values()):
            if now - accepted_at > HANDSHAKE_S:
                break
            young += 1
        failed = max(self._accepted - self._through - young, self._told)
        new, self._told = failed - self._told, failed
        return new
