"""The control channel over real sockets."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import zmq
from zmq.utils import z85

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control import loop as side_channel
from baton.kv_connector.control.loop import ControlLoop, PeerKey
from baton.kv_connector.control.sockets import MAX_PAYLOAD_BYTES, ControlClient, ControlServer, Wakeup
from baton.kv_connector.errors import ConnectorConfigError, ConnectorError, ProtocolError
from tests.support.control_loops import SECRET, MakeLoop, Recorder
from tests.support.ports import free_port
from tests.support.waiting import eventually

T = TypeVar("T")

OTHER_SECRET = ClusterSecret(b"a secret of another one")


class Talk:
    """A listener and a dialler that have started."""

    def __init__(self, loops: MakeLoop) -> None:
        self.prefill, self.p = loops()
        self.decode, self.d = loops()
        self.address = self.prefill.listen("127.0.0.1", 0, SECRET)
        self.prefill.start()
        self.decode.start()

    def say(self, payload: bytes) -> None:
        self.decode.send(("dial", self.address), payload)


@pytest.fixture
def talk(loops: MakeLoop) -> Talk:
    return Talk(loops)


def take(receive: Callable[[], Iterator[T]]) -> list[T]:
    got: list[T] = []

    def some() -> bool:
        got.extend(receive())
        return bool(got)

    eventually(some)
    return got


def test_messages_go_both_ways_at_once(talk: Talk) -> None:
    """D dials, P answers the peer that the message came from; no loop's tick is waited for."""
    answered = threading.Event()
    talk.p.react = lambda peer, payload: talk.prefill.send(peer, payload + b" too")
    talk.d.react = lambda *_: answered.set()
    for _ in range(50):
        answered.clear()
        talk.say(b"hello")
        assert answered.wait(5)

    assert talk.p.got[0][0][0] == "accept"
    assert set(talk.d.got) == {(("dial", talk.address), b"hello too")}


def test_messages_before_the_connection_stands_are_kept_in_order(talk: Talk) -> None:
    """The first messages to a peer are not lost to the handshake."""
    for i in range(100):
        talk.say(b"%d" % i)

    eventually(lambda: len(talk.p.got) == 100)
    assert talk.p.payloads == [b"%d" % i for i in range(100)]


def test_a_client_key_alone_opens_nothing(loops: MakeLoop) -> None:
    """A listener's key cannot be guessed from the outside: a client with its own pair and a wrong server key fails."""
    prefill, p = loops()
    address = prefill.listen("127.0.0.1", 0, SECRET)
    prefill.start()
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket_:
        socket_.linger = 0
        socket_.curve_publickey, socket_.curve_secretkey = public, secret
        socket_.curve_serverkey = zmq.curve_public(z85.encode(OTHER_SECRET.derive("control-channel/server")))
        socket_.connect(address)
        socket_.send(b"guess")
        time.sleep(0.3)

    assert p.got == []


def test_nothing_queues_for_a_peer_that_is_not_there(loops: MakeLoop) -> None:
    """Trap 11: what was sent while no process listened is not delivered to a process that starts there later."""
    port = free_port()
    (prefill, p), (decode, _) = loops(), loops()
    decode.start()
    decode.send(("dial", f"tcp://127.0.0.1:{port}"), b"stale")
    time.sleep(1.2)

    prefill.listen("127.0.0.1", port, SECRET)
    prefill.start()

    def talk() -> bool:
        decode.send(("dial", f"tcp://127.0.0.1:{port}"), b"fresh")
        return bool(p.got)

    eventually(talk)
    assert b"stale" not in p.payloads


def test_an_answer_to_a_peer_that_has_gone_is_dropped(talk: Talk) -> None:
    """Sending to an unknown identity is a loss like any other."""
    talk.prefill.send(("accept", b"nobody"), b"lost")
    talk.decode.send(("accept", b"nobody"), b"this loop does not listen")
    talk.say(b"still alive")

    eventually(lambda: talk.p.got)


def test_a_message_may_be_as_long_as_a_frame(talk: Talk) -> None:
    """A table of regions or of block ids is; a longer one is refused where it is made."""
    with pytest.raises(ProtocolError, match="exceeds"):
        talk.say(bytes(MAX_PAYLOAD_BYTES + 1))
    talk.say(bytes(MAX_PAYLOAD_BYTES))

    eventually(lambda: talk.p.got)
    assert len(talk.p.payloads[0]) == MAX_PAYLOAD_BYTES


def test_a_broken_connection_is_told(talk: Talk, loops: MakeLoop) -> None:
    """The decode rank hears soon that its prefill rank has gone, and reaches its successor at the same address."""
    successor, s = loops()
    talk.say(b"hello")
    eventually(lambda: talk.p.got)

    talk.prefill.stop()

    eventually(lambda: talk.d.lost)
    assert set(talk.d.lost) == {("dial", talk.address)}
    successor.listen("127.0.0.1", int(talk.address.rpartition(":")[2]), SECRET)
    successor.start()

    def is_heard() -> bool:
        talk.say(b"again")
        return bool(s.got)

    eventually(is_heard)


def test_a_forgotten_peer_is_dialled_again(talk: Talk) -> None:
    """`forget` closes the connection; a later message makes another. Forgetting a stranger does nothing."""
    talk.say(b"one")
    eventually(lambda: talk.p.got)

    talk.decode.forget(("dial", talk.address))
    talk.decode.forget(("dial", "tcp://127.0.0.1:9"))
    talk.decode.forget(("accept", b"x"))
    talk.say(b"two")

    eventually(lambda: len(talk.p.got) == 2)
    assert talk.p.got[0][0] != talk.p.got[1][0]


def test_ticks_come_by_time(loops: MakeLoop) -> None:
    """`on_tick` runs every `tick_s`, and may send; what is posted wakes the loop, and makes no tick."""
    (often, by_time), (woken, rare), (prefill, p) = loops(tick_s=0.01), loops(tick_s=60.0), loops()
    address = prefill.listen("127.0.0.1", 0, SECRET)
    rare.react_to_tick = lambda: woken.send(("dial", address), b"from the tick")
    for loop in (often, woken, prefill):
        loop.start()
    eventually(lambda: by_time.ticks > 5)
    eventually(lambda: p.payloads == [b"from the tick"])

    for _ in range(100):
        woken.send(("dial", address), b"posted")

    eventually(lambda: p.payloads == [b"from the tick", *[b"posted"] * 100])
    assert rare.ticks == 1
    woken_for_ever = zmq.Poller()
    woken_for_ever.register(woken._wakeup.descriptor, zmq.POLLIN)
    eventually(lambda: not woken_for_ever.poll(0))


def test_a_broken_handler_does_not_end_the_loop(talk: Talk, caplog: pytest.LogCaptureFixture) -> None:
    """The exception is logged; the next message is handled."""

    def fail(peer: PeerKey, payload: bytes) -> None:
        raise RuntimeError("a bug in the handler")

    talk.p.react = fail
    with caplog.at_level(logging.ERROR):
        talk.say(b"one")
        talk.say(b"two")
        eventually(lambda: len(talk.p.got) == 2)

    assert "a bug in the handler" in caplog.text


def test_stop_does_not_wait_for_the_garbage_collector() -> None:
    """A monitor socket left to the collector keeps its context, and so the process, from ending."""
    loop = ControlLoop(Recorder(), 10.0, secret=SECRET)
    loop.start()
    loop.send(("dial", "tcp://127.0.0.1:9"), b"x")
    eventually(lambda: loop._clients)
    client = next(iter(loop._clients.values()))

    loop.stop()

    assert client.monitor.closed
    assert client.socket.closed
    assert loop._context.closed


def test_a_message_is_one_frame() -> None:
    """Anything in several frames is none of ours and is dropped on either side, the next message is not."""
    with zmq.Context() as context:
        server = ControlServer("127.0.0.1", 0, SECRET, context)
        client = ControlClient(server.address, SECRET, context)
        assert client.socket.poll(3000, zmq.POLLOUT)
        client.socket.send_multipart([b"two", b"frames"])
        client.send(b"one")
        got = take(lambda: server.receive(10))
        assert [payload for _, payload in got] == [b"one"]

        server.socket.send_multipart([got[0][0], b"two", b"frames"])
        assert server.send(got[0][0], b"one")
        assert take(lambda: client.receive(10)) == [b"one"]
        for socket_ in (client, server, client, server):
            socket_.close()


def test_a_wakeup_is_set_and_cleared_any_number_of_times() -> None:
    """Many calls of `set` are one event; clearing nothing and setting after the end are harmless."""
    wakeup = Wakeup()
    poller = zmq.Poller()
    poller.register(wakeup.descriptor, zmq.POLLIN)

    wakeup.set()
    wakeup.set()
    assert poller.poll(0)
    wakeup.clear()
    wakeup.clear()
    assert not poller.poll(0)
    wakeup.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(wakeup.descriptor)
    wakeup.close()
    wakeup.set()


@pytest.mark.parametrize(
    ("secret", "address", "words"),
    [(None, "tcp://127.0.0.1:9", "without a secret"), (SECRET, "nonsense", "cannot dial nonsense")],
)
def test_what_cannot_be_dialled_is_logged(
    loops: MakeLoop, caplog: pytest.LogCaptureFixture, secret: ClusterSecret | None, address: str, words: str
) -> None:
    """Since `send` cannot say so. It ends that message only."""
    loop, _ = loops(secret)
    loop.start()

    loop.send(("dial", address), b"x")
    loop.send(("dial", address), b"x")

    eventually(lambda: words in caplog.text)


def test_an_address_in_use_is_named(loops: MakeLoop) -> None:
    """The operator reads which address cannot be bound; the loop can still be stopped."""
    (first, _), (second, _) = loops(), loops()
    address = first.listen("127.0.0.1", 0, SECRET)

    with pytest.raises(ConnectorError, match=address):
        second.listen("127.0.0.1", int(address.rpartition(":")[2]), SECRET)

    second.stop()


def test_stop_is_idempotent_and_needs_no_start(loops: MakeLoop) -> None:
    """Stopping twice, before a start, and posting afterwards are all fine."""
    loop, _ = loops()
    loop.listen("127.0.0.1", 0, SECRET)

    loop.stop()
    loop.stop()

    loop.send(("dial", "tcp://127.0.0.1:9"), b"x")


def test_stop_does_not_wait_for_ever_for_a_stuck_handler(
    loops: MakeLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It returns and says so; a later one closes what is left."""
    monkeypatch.setattr(side_channel, "STOP_S", 0.05)
    loop, handler = loops()
    stuck, may_go_on = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        may_go_on.wait(60)

    handler.react_to_tick = hang
    loop.start()
    assert stuck.wait(10)

    loop.stop()

    assert "stuck in a handler" in caplog.text
    may_go_on.set()


def test_libzmq_without_encryption_is_refused(loops: MakeLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no fallback to plain text."""
    loop, _ = loops()
    monkeypatch.setattr(zmq, "has", lambda _: False)

    with pytest.raises(ConnectorConfigError, match="CURVE"):
        loop.listen("127.0.0.1", 0, SECRET)
