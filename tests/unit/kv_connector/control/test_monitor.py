"""Counting the connections that came to nothing, from events that do not say which one got through."""

import errno

import pytest
import zmq

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.monitor import HANDSHAKE_S, Event, Handshakes, Monitor
from baton.kv_connector.control.sockets import ControlClient

ACCEPTED, THROUGH, GONE = zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED


@pytest.mark.parametrize(
    ("events", "failed"),
    [
        ([(ACCEPTED, 9), (GONE, 9)], [1, 0]),
        ([(ACCEPTED, 9), (THROUGH, 0)], [0, 0]),
        ([(ACCEPTED, 9), (THROUGH, 0), (GONE, 9)], [0, 0]),
        ([(ACCEPTED, 9)], [0, 1]),
        ([(ACCEPTED, 8), (THROUGH, 0), (ACCEPTED, 9), (GONE, 9)], [0, 1]),
        ([(ACCEPTED, 9), (ACCEPTED, 9), (GONE, 9)], [2, 0]),
    ],
    ids=[
        *(
            "raw bytes end at once, and are told once",
            "a peer",
            "a peer that has gone",
            "still at it until its time is up",
        ),
        *("a young peer hides a failure for as long as it is young", "a descriptor that returns is another connection"),
    ],
)
def test_connections_without_a_handshake_are_counted(events: list[tuple[int, int]], failed: list[int]) -> None:
    """Those that failed before the last moment of a handshake, and after it."""
    handshakes = Handshakes()
    for event in events:
        handshakes.note(Event(*event), 0.0)

    assert [handshakes.failed(HANDSHAKE_S), handshakes.failed(HANDSHAKE_S + 1.0)] == failed


def test_sockets_that_follow_each_other_are_all_watched() -> None:
    """The last monitor's address is still held by libzmq when the next one is made, often in the same memory."""
    with zmq.Context() as context:
        for _ in range(300):
            with context.socket(zmq.DEALER) as socket:
                Monitor(socket, Monitor.DIALLING).close()


def test_a_socket_that_cannot_be_watched_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to the collector, it would keep its context from ending."""

    def fail(_monitor: Monitor, socket: zmq.Socket[bytes], events: int) -> None:
        opened.append(socket)
        raise zmq.ZMQError(errno.EMFILE)

    opened: list[zmq.Socket[bytes]] = []
    monkeypatch.setattr(Monitor, "__init__", fail)
    with zmq.Context() as context, pytest.raises(zmq.ZMQError):
        ControlClient("tcp://127.0.0.1:9", ClusterSecret(b"the secret of this cluster"), context)

    assert [socket.closed for socket in opened] == [True]
