"""The encrypted connections over which hostile ranks speak to honest ones, and the count of what has arrived.

A frame counts when the worker has dealt with it. The sender waits where a socket takes no more, so none is lost but
those that are on their way when D hangs up, as it may on a peer that spoilt its own session and so says nothing to be
believed for the time of `peer_timeout_s`.
"""

import time
from collections import deque
from collections.abc import Callable

import zmq

from baton.kv_connector.control.loop import ControlHandler, ControlLoop, PeerKey
from baton.kv_connector.control.sockets import ControlClient, ControlServer
from tests.support.ranks import SECRET, Ranks

PATIENCE_S = 60.0  # a rank that takes nothing for so long does not work any more
OLD_LINES = 4  # kept open until what was said over them has arrived


class Arrivals:
    """Stands between a control loop and its worker, and counts frames of others than those that are known already."""

    def __init__(self, loop: ControlLoop) -> None:
        self.frames = 0
        self.honest: set[PeerKey] | None = None  # `None`: everybody is
        self.known: set[PeerKey] = set()
        self._handler: ControlHandler = loop._handler
        loop._handler = self

    def on_payload(self, peer: PeerKey, payload: bytes) -> None:
        self._handler.on_payload(peer, payload)
        if self.honest is None:
            self.known.add(peer)
        elif peer not in self.honest:
            self.frames += 1

    def on_tick(self) -> None:
        self._handler.on_tick()

    def on_disconnect(self, peer: PeerKey) -> None:
        self._handler.on_disconnect(peer)


class Lines:
    """A hostile decode rank's connections to P, and a hostile prefill rank's listener, which D has dialled."""

    def __init__(self, ranks: Ranks, while_waiting: Callable[[], None]) -> None:
        """`while_waiting` is called while a socket takes nothing; it must call `hear`."""
        self._while_waiting = while_waiting
        self.at_prefill, self.at_decode = Arrivals(ranks.prefill._loop), Arrivals(ranks.decode._loop)
        self.sent_to_prefill = self.sent_to_decode = 0
        self._address = ranks.prefill.address
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._listener = ControlServer("127.0.0.1", 0, SECRET, self._context)
        self.address = self._listener.address
        self._identity = b""  # of D at the listener
        self.hung_up = self.lost = 0  # how often D did so, and what was on its way then
        self._diallers = deque([self._dial()])

    @property
    def arrived(self) -> int:
        """Frames that the honest workers have dealt with."""
        return self.at_prefill.frames + self.at_decode.frames

    @property
    def under_way(self) -> int:
        """Frames that have been sent and have not arrived."""
        return self.sent_to_prefill + self.sent_to_decode - self.arrived

    def begin(self) -> None:
        """The connections that have spoken so far are those of honest ranks."""
        for arrivals in (self.at_prefill, self.at_decode):
            arrivals.honest = set(arrivals.known)

    def dial_again(self) -> None:
        """A new process of the hostile decode rank has a connection of its own.

        Raises:
            TimeoutError: P takes nothing any more.
        """
        self._diallers.append(self._dial())
        if len(self._diallers) > OLD_LINES:
            self._insist(
                lambda: self.at_prefill.frames >= self.sent_to_prefill, "P"
            )  # what a closed socket holds is lost
            self._diallers.popleft().close()

    def to_prefill(self, frame: bytes) -> None:
        """Say something to P. Raises `TimeoutError`: P takes nothing any more."""
        self._insist(lambda: _try_to_send(self._diallers[-1], frame), "P")
        self.sent_to_prefill += 1

    def to_decode(self, frame: bytes) -> None:
        """Say something to D, once it has dialled. Raises `TimeoutError`: D takes nothing any more."""
        self._insist(lambda: bool(self._identity) and self._listener.send(self._identity, frame), "D")
        self.sent_to_decode += 1

    def hear(self) -> None:
        """Read what the honest ranks answer, or their sockets would fill up."""
        for identity, _ in self._listener.receive(10_000):
            if self._identity not in (b"", identity):
                self.hung_up += 1
                self.lost += self.sent_to_decode - self.at_decode.frames
                self.sent_to_decode = self.at_decode.frames
            self._identity = identity
        for dialler in self._diallers:
            for _ in dialler.receive(10_000):
                pass
            dialler.lost_connection()

    def close(self) -> None:
        for dialler in self._diallers:
            dialler.close()
        self._listener.close()
        self._context.destroy(linger=0)

    def _dial(self) -> ControlClient:
        return ControlClient(self._address, SECRET, self._context)

    def _insist(self, attempt: Callable[[], bool], name: str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not attempt():
            if time.monotonic() > give_up:
                raise TimeoutError(f"{name} takes nothing any more")
            self._while_waiting()
            time.sleep(0.0002)


def _try_to_send(client: ControlClient, frame: bytes) -> bool:
    try:
        client.socket.send(frame, flags=zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True
