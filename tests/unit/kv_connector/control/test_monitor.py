"""Counting the connections that came to nothing, from events that do not say which one got through."""

import errno

import pytest
import zmq

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.monitor import HANDSHAKE_S, Event, Handshakes, Monitor
from baton.kv_connector.control.sockets import ControlClient

LATER = HANDSHAKE_S + 1.0


def after(*events: tuple[int, int], now: float = 0.0) -> Handshakes:
    """Some events, all at once."""
    handshakes = Handshakes()
    for event in events:
        handshakes.note(Event(*event), now)
    return handshakes


ACCEPTED, THROUGH, GONE = zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED


def test_a_connection_that_closes_without_a_handshake_has_failed() -> None:
    """Raw bytes end so, at once, and are told once."""
    handshakes = after((ACCEPTED, 9), (GONE, 9))

    assert [handshakes.failed(0.0), handshakes.failed(0.0)] == [1, 0]


def test_a_peer_has_not_failed_neither_young_nor_old_nor_gone() -> None:
    """Its handshake counts whenever libzmq tells of it."""
    handshakes = after((ACCEPTED, 9), (THROUGH, 0))
    assert [handshakes.failed(0.0), handshakes.failed(LATER)] == [0, 0]

    handshakes.note(Event(GONE, 9), LATER)
    assert handshakes.failed(LATER) == 0


def test_a_connection_may_still_be_at_it() -> None:
    """Half-open ones are failures when their time is up, not before."""
    handshakes = after((ACCEPTED, 9))

    assert [handshakes.failed(HANDSHAKE_S), handshakes.failed(LATER)] == [0, 1]


def test_failures_among_peers_are_counted_in_the_end() -> None:
    """A young peer hides a failure for as long as it is young, and no longer."""
    handshakes = after((ACCEPTED, 8), (THROUGH, 0), (ACCEPTED, 9), (GONE, 9))

    assert [handshakes.failed(0.0), handshakes.failed(LATER)] == [0, 1]


def test_a_descriptor_that_returns_is_another_connection() -> None:
    """The system gives numbers again; a close that was not told of changes no count."""
    handshakes = after((ACCEPTED, 9), (ACCEPTED, 9), (GONE, 9))

    assert handshakes.failed(0.0) == 2


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
