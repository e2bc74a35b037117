"""What reaches the listening socket without the cluster secret: anything at all, any number of times."""

import random
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from baton.kv_connector.control.loop import ControlLoop
from baton.kv_connector.control.monitor import HANDSHAKE_S
from tests.fuzz.channel import PATIENCE_S, Peer, comes_true, descriptors, listen, refused, resident_bytes

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"


def greeting(mechanism: bytes) -> bytes:
    """What a ZMTP 3 peer says first."""
    return SIGNATURE + b"\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def long_frame(flags: int, length: int) -> bytes:
    """The head of a frame that claims to be so long."""
    return struct.pack(">BQ", flags, length)


@pytest.fixture
def listener() -> Iterator[ControlLoop]:
    loop, _ = listen()
    loop.start()
    yield loop
    loop.stop()


@pytest.fixture
def peer(listener: ControlLoop) -> Iterator[Peer]:
    assert listener._server is not None
    with Peer(listener._server.address) as peer:
        assert peer.is_answered()
        yield peer


RAW = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "old zmtp": b"\x01\x00" + b"\x05\x00hello",
    "no encryption": greeting(b"NULL") + b"\x04\x26\x05READY" + bytes(31),
    "passwords": greeting(b"PLAIN") + b"\x04\x0f\x05HELLO\x04user\x04pass",
    "unknown mechanism": greeting(b"\xff" * 20),
    "hello of nobody": greeting(b"CURVE") + b"\x04\xc8\x05HELLO" + bytes(range(194)),
    "endless command": greeting(b"CURVE") + long_frame(0x06, (1 << 63) - 1) + bytes(4_096),
    "endless message": greeting(b"CURVE") + long_frame(0x02, 1 << 62) + bytes(4_096),
    "giant command": greeting(b"CURVE") + long_frame(0x06, 1 << 32) + bytes(1 << 20),
    "signature that goes on": SIGNATURE + b"\xff" * 100_000,
}


def test_no_raw_conversation_gets_in(listener: ControlLoop, peer: Peer) -> None:
    """Each connection is closed, at once or when its time is up, and counted; peers are served all the while."""
    with ExitStack() as stack:
        open_ = [stack.enter_context(peer.dial(data)) for data in RAW.values()]
        assert peer.is_let_in()
        assert comes_true(lambda: refused(listener) == len(RAW)), refused(listener)
        assert [name for name, connection in zip(RAW, open_, strict=True) if not hung_up(connection)] == []
    assert peer.is_answered()


def test_random_bytes_are_counted_and_forgotten(listener: ControlLoop, peer: Peer) -> None:
    """300 connections with up to 2 kB of noise each, some of it behind a valid greeting."""
    random_ = random.Random(7)
    before = descriptors()
    for _ in range(300):
        noise = random_.randbytes(random_.randrange(2_000))
        peer.dial(random_.choice((b"", SIGNATURE, greeting(b"CURVE"))) + noise).close()

    assert comes_true(lambda: refused(listener) == 300), refused(listener)
    assert comes_true(lambda: descriptors() <= before)
    assert peer.is_let_in()


def test_connections_that_come_and_go_leave_nothing_behind(listener: ControlLoop, peer: Peer) -> None:
    """500 after a warm-up: descriptors come back, memory stays."""
    for _ in range(200):
        peer.dial().close()
    before, memory = descriptors(), resident_bytes()
    for _ in range(500):
        peer.dial().close()

    assert peer.is_let_in()
    assert comes_true(lambda: refused(listener) == 700), refused(listener)
    assert comes_true(lambda: descriptors() <= before), (before, descriptors())
    assert resident_bytes() - memory < 10 * 1024 * 1024


def test_half_open_connections_are_closed_when_their_time_is_up(listener: ControlLoop, peer: Peer) -> None:
    """300 that say nothing, half a greeting, or a greeting and no more."""
    random_ = random.Random(8)
    with ExitStack() as stack:
        before = descriptors()
        said = [random_.choice((b"", SIGNATURE[:4], greeting(b"CURVE"))) for _ in range(300)]
        open_ = [stack.enter_context(peer.dial(data)) for data in said]
        assert peer.is_let_in()
        assert comes_true(lambda: refused(listener) == 300, HANDSHAKE_S + PATIENCE_S), refused(listener)
        assert comes_true(lambda: descriptors() <= before + len(open_))  # ours are open still
        assert all(hung_up(connection) for connection in open_)


def hung_up(connection: socket.socket) -> bool:
    """Whether the other end has closed."""
    with suppress(ConnectionError):
        while connection.recv(4_096):
            pass
    return True


def test_a_process_without_descriptors_left_serves_its_peers_and_recovers() -> None:
    """More connections than it may have: who is in stays in, and newcomers get in when the time of those is up."""
    command = [sys.executable, "-m", "tests.fuzz.channel", "--descriptors", "100"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with Peer(process.stdout.readline().strip()) as peer, ExitStack() as stack:
            assert peer.is_answered()
            for _ in range(150):
                stack.enter_context(connecting(peer.address))
            assert peer.is_answered()

            assert peer.is_let_in(2 * HANDSHAKE_S + PATIENCE_S)
        counted, _ = process.communicate(timeout=PATIENCE_S)
    assert int(counted) > 0


def connecting(address: str) -> socket.socket:
    """Begin to connect, and do not wait: the backlog is full as well."""
    connection = socket.socket()
    connection.setblocking(False)
    with suppress(BlockingIOError):
        connection.connect(("127.0.0.1", int(address.rpartition(":")[2])))
    return connection
