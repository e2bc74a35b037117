"""What only the real engine can show: its version, its ports, the time of a fence, its faults."""

import ctypes
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.engine import mooncake, mooncake_listener
from baton.kv_connector.engine.base import Push
from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.engine.mooncake_listener import Announcement, ask, shorten_accept
from baton.kv_connector.engine.port_memory import PortMemory
from baton.kv_connector.errors import EngineError
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan
from tests.support.waiting import eventually

SIZE = 1 << 20


@pytest.fixture
def memory() -> Any:
    """A buffer; keep it while engines use it."""
    return (ctypes.c_ubyte * SIZE)()


@pytest.fixture
def factory() -> Iterator[MooncakeFactory]:
    """A factory that is closed in the end."""
    factory = MooncakeFactory(host="127.0.0.1")
    yield factory
    factory.close()


def spans(memory: Any) -> list[tuple[int, int]]:
    return [(ctypes.addressof(memory), SIZE)]


def port_of(session: str) -> int:
    return int(session.rpartition(":")[2])


def test_the_engine_acknowledges_after_applying(factory: MooncakeFactory, memory: Any) -> None:
    """Trap 2: it announces TCP protocol 2, and we can read that."""
    announced = ask("127.0.0.1", port_of(factory.receiver(spans(memory)).session))

    assert announced.tcp_version >= 2
    assert announced.transport == "tcp"
    assert announced.data_port > 0


def test_tcp_protocol_1_is_refused(factory: MooncakeFactory, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that does not announce protocol 2 must not receive."""
    monkeypatch.setattr(mooncake, "ask", lambda *_: Announcement(1, 0))

    with pytest.raises(EngineError, match="protocol 1"):
        factory.receiver(spans(memory))


def test_a_fence_takes_the_engine_off_its_port(factory: MooncakeFactory, memory: Any) -> None:
    """Its wait is shortened (a second of it would stall every request of the node), and nothing listens afterwards."""
    receiver = factory.receiver(spans(memory))
    port = port_of(receiver.session)
    assert shorten_accept(port)

    receiver.close()

    assert not shorten_accept(port)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_two_callers_of_close_both_wait_for_the_fence(factory: MooncakeFactory, memory: Any) -> None:
    """A caller that has returned from close() may give the blocks away."""
    receiver = factory.receiver(spans(memory))
    port, refused = port_of(receiver.session), []

    def close() -> None:
        receiver.close()
        with socket.socket() as sock:
            refused.append(sock.connect_ex(("127.0.0.1", port)) != 0)

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert refused == [True, True]


def test_an_engine_that_lives_on_is_no_fence(factory: MooncakeFactory, memory: Any) -> None:
    """If anything else holds the engine, no call of close() must pretend; once that lets go, closing again is a fence."""
    receiver = factory.receiver(spans(memory))
    held = [receiver._engine]

    for _ in range(2):
        with pytest.raises(EngineError, match="still in use"):
            receiver.close()
    held.clear()
    receiver.close()


def test_running_out_of_ports_is_said(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every port was used lately, starting fails instead of using one again, and says which range is too small."""
    monkeypatch.setattr(mooncake, "_ATTEMPTS", 2)
    ports = PortMemory()
    ports.add(range(1, 65536), keep=65536)

    with pytest.raises(EngineError, match="no port for an engine in 2 attempts: 65535 of the 2001 from 15000 on"):
        MooncakeFactory(host="127.0.0.1", ports=ports).receiver(spans(memory))


def test_a_push_beyond_its_deadline_fails(memory: Any) -> None:
    """Whatever Mooncake says of it, the push ends; what it left behind counts until Mooncake has ended it."""
    factory = MooncakeFactory(host="127.0.0.1", push_timeout_s=0.05, max_in_flight=4)
    sender, receiver = factory.sender(spans(memory)), factory.receiver(spans(memory))
    eventually(lambda: sender.answered(receiver.session))
    sender.now = lambda: time.monotonic() + 100  # the clock of the deadline alone
    address = ctypes.addressof(memory)
    push = sender.submit(receiver.session, CopyPlan.of([Copy(address, address + SIZE // 2, 64)] * 8))
    sender.now = lambda: time.monotonic() + 200

    assert push.poll() is False

    give_up = time.monotonic() + 5
    while sender._in_flight and time.monotonic() < give_up:
        time.sleep(0.01)
        sender.reap()
    assert not sender._in_flight
    factory.close()


def test_a_target_that_never_answers_holds_up_no_other_push(factory: MooncakeFactory, memory: Any) -> None:
    """A decode node that was stopped accepts and says nothing; Mooncake would wait 60 s for it in the pushing thread."""
    sender, receiver = factory.sender(spans(memory)), factory.receiver(spans(memory))
    address = ctypes.addressof(memory)
    copies = CopyPlan.of([Copy(address, address + SIZE // 2, 64)])
    results: list[bool | None] = []

    def push() -> None:
        silent = sender.submit(f"127.0.0.1:{server.getsockname()[1]}", copies)
        results.append(_end_of(sender.submit(receiver.session, copies)))
        results.append(_end_of(silent))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=push, daemon=True)
        thread.start()
        thread.join(timeout=15)

    assert results == [True, False]


def _end_of(push: Push) -> bool | None:
    give_up = time.monotonic() + 12
    while (result := push.poll()) is None and time.monotonic() < give_up:
        time.sleep(0.005)
    return result


@pytest.mark.parametrize(("started", "message"), [(-1, "does not start"), (0, "does not register")])
def test_refusals_are_translated(
    factory: MooncakeFactory, memory: Any, monkeypatch: pytest.MonkeyPatch, started: int, message: str
) -> None:
    """A status other than 0 from Mooncake becomes an EngineError that says what was tried."""

    def broken() -> Any:
        return SimpleNamespace(
            initialize=lambda *_: started, batch_register_memory=lambda *_: -7, get_rpc_port=lambda: 15_000
        )

    monkeypatch.setattr("mooncake.engine.TransferEngine", broken)
    monkeypatch.setattr(mooncake, "ask", lambda *_: Announcement(15_001, 2, "tcp"))

    with pytest.raises(EngineError, match=message):
        factory.sender(spans(memory))


def test_where_the_listening_socket_cannot_be_found_the_fence_is_merely_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process listens there, or the kernel does not tell."""
    assert shorten_accept(1) is False

    def fail(_: int) -> set[str]:
        raise OSError("no /proc")

    monkeypatch.setattr(mooncake_listener, "_listening_inodes", fail)
    assert shorten_accept(1) is False


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x05\x00\x00\x00\x00\x00\x00\x00\x01[[[[",
        b"\x03\x00\x00\x00\x00\x00\x00\x00\x0112",
        (100_001).to_bytes(8, "little") + b"\x01" + b"[" * 100_000,
        (26).to_bytes(8, "little") + b'\x01{"tcp_data_port": 99999}  ',
        b"\x1a\x00\x00\x00\x00\x00\x00\x00\x01" + b'{"tcp_data_port": 1e9999}',
    ],
    ids=["nothing", "not JSON", "a number", "nested too deep", "no port", "no number"],
)
def test_a_strange_answer_is_an_error(answer: bytes) -> None:
    """Something that is not Mooncake, or another version of it, is told so."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(EngineError, match="does not describe itself"):
            ask("127.0.0.1", server.getsockname()[1])
        thread.join()


def test_a_description_that_is_announced_as_too_long_is_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def announce() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall((1 << 40).to_bytes(8, "little"))

        thread = threading.Thread(target=announce)
        thread.start()
        with pytest.raises(EngineError, match="has 1099511627776 bytes"):
            ask("127.0.0.1", server.getsockname()[1])
        thread.join()


def test_all_addresses_of_a_name_together_are_tried_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of a hundred takes a connection."""
    clock_s, dialled = [0.0], []

    def dial(address: tuple[str, int], timeout: float) -> socket.socket:
        dialled.append(address)
        clock_s[0] += timeout
        raise TimeoutError

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{number}", 1)) for number in range(100)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", dial)
    monkeypatch.setattr(mooncake_listener, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    with pytest.raises(EngineError, match="does not describe itself"):
        ask("p", 1, timeout_s=2.0)

    assert dialled == [(f"10.0.0.{number}", 1) for number in range(100)]
    assert clock_s[0] == pytest.approx(2.0)


def test_an_answer_that_comes_byte_by_byte_is_waited_for_so_long_in_all() -> None:
    """A decode node that lies would keep a thread for each engine that it names."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall((1 << 20).to_bytes(8, "little"))
                for _ in range(600):
                    connection.sendall(b"x")
                    time.sleep(0.1)

        thread = threading.Thread(target=drip)
        thread.start()
        begun_s = time.monotonic()
        with pytest.raises(EngineError, match=r"took too long|timed out"):
            ask("127.0.0.1", server.getsockname()[1], timeout_s=0.5)
        assert time.monotonic() - begun_s < 30
        thread.join()


def test_another_transport_than_the_one_asked_for_is_refused(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mooncake ignores the name that it is given, and takes TCP where it finds no card."""
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    monkeypatch.setattr(mooncake, "ask", lambda *_: Announcement(15000, 2, "tcp"))
    factory = MooncakeFactory(host="127.0.0.1", protocol="rdma")

    with pytest.raises(EngineError, match="'rdma', but Mooncake chose 'tcp'"):
        factory.sender(spans(memory))


def test_the_device_is_entered_before_each_engine(memory: Any) -> None:
    """A receiving engine is made by a thread of its own, whose device is not the worker's."""
    entered: list[str] = []
    factory = MooncakeFactory(host="127.0.0.1", enter_device=lambda: entered.append(threading.current_thread().name))
    thread = threading.Thread(target=factory.receiver, args=(spans(memory),), name="fence")

    factory.sender(spans(memory))
    thread.start()
    thread.join()
    factory.close()

    assert entered == ["MainThread", "fence"]
