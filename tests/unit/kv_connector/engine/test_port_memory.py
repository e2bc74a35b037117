"""Ports that receiving engines had last are not used again soon, not even by another process."""

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from baton.kv_connector.engine import mooncake
from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.engine.mooncake_environment import port_range
from baton.kv_connector.engine.mooncake_listener import Announcement
from baton.kv_connector.engine.port_memory import PortMemory


def test_another_process_sees_the_ports(tmp_path: Path) -> None:
    """Trap 11: a restarted node avoids its predecessor's ports, however long ago that drew them. At the first start there is no file."""
    assert PortMemory(tmp_path / "ports").recent() == set()
    PortMemory(tmp_path / "ports").add([15001, 15002], keep=100)
    PortMemory(tmp_path / "ports").add([15003], keep=100)

    assert PortMemory(tmp_path / "ports").recent() == {15001, 15002, 15003}


def test_the_ports_used_longest_ago_are_forgotten(tmp_path: Path) -> None:
    """The range is small, so ports must come back; one that is used again counts as used last."""
    memory = PortMemory(tmp_path / "ports")
    for port in (15001, 15002, 15003, 15001):
        memory.add([port], keep=2)

    assert memory.recent() == PortMemory(tmp_path / "ports").recent() == {15003, 15001}
    assert (tmp_path / "ports").read_text().splitlines() == ["15003", "15001"]


def test_a_file_of_an_older_version_or_a_damaged_one_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """It must not keep engines from being made."""
    (tmp_path / "ports").write_text("15001 1790000000\n\nport\n15002\n")

    assert PortMemory(tmp_path / "ports").recent() == {15001, 15002}


def test_a_file_that_cannot_be_written_does_not_keep_a_fence_from_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This process remembers its own ports, and says that others do not hear of them."""
    memory = PortMemory(tmp_path / "no folder" / "ports")
    memory.add([15001], keep=100)

    assert memory.recent() == {15001}
    assert "other processes do not hear" in caplog.text


@pytest.mark.parametrize(
    ("low", "high", "drawn_from"),
    [
        ("", "", range(15_000, 17_001)),
        ("20000", "20099", range(20_000, 20_100)),
        ("16000", "", range(16_000, 17_001)),
        ("20000", "", range(15_000, 17_001)),
        ("many", "0", range(15_000, 17_001)),
    ],
)
def test_the_range_of_ports_is_mooncakes(low: str, high: str, drawn_from: range) -> None:
    """What it cannot use it replaces by its own."""
    assert port_range({"MC_MIN_RPC_PORT": low, "MC_MAX_RPC_PORT": high}) == drawn_from


class Native:
    """Mooncake's engine, as far as ports go: two of the range, at random, that no living engine has."""

    random = random.Random(5)
    drawn_from = port_range({})
    living: set[int]
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        free = [port for port in self.random.sample(self.drawn_from, 10) if port not in self.living]
        self.ports = set(free[:2])
        self.rpc, self.data = free[:2]
        self.living |= self.ports

    def __del__(self) -> None:
        self.living.difference_update(self.ports)

    def initialize(self, *_: object) -> int:
        DATA_PORTS[self.rpc] = self.data
        return 0

    def get_rpc_port(self) -> int:
        return self.rpc

    def batch_register_memory(self, *_: object) -> int:
        return 0


DATA_PORTS: dict[int, int] = {}


@pytest.fixture
def ports() -> PortMemory:
    """Without a file a process remembers its own."""
    return PortMemory()


@pytest.fixture
def factory(ports: PortMemory) -> MooncakeFactory:
    return MooncakeFactory(host="127.0.0.1", ports=ports)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> type[Native]:
    """Take the place of Mooncake."""
    Native.living, Native.made, Native.random = set(), 0, random.Random(5)
    monkeypatch.setitem(sys.modules, "mooncake.engine", SimpleNamespace(TransferEngine=Native))
    monkeypatch.setattr(mooncake, "ask", lambda _, port: Announcement(DATA_PORTS[port], 2, "tcp"))
    monkeypatch.setattr(mooncake, "shorten_accept", lambda _: True)
    for name in ("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT"):
        monkeypatch.delenv(name, raising=False)
    return Native


def test_after_1000_fences_every_engine_has_been_made(
    native: type[Native], ports: PortMemory, factory: MooncakeFactory
) -> None:
    """Real engines take 65 ms to draw, 15 are 1 s."""
    drawn = []
    for _ in range(1_000):
        before, lately = native.made, ports.recent()
        receiver = factory.receiver([(0, 64)])
        drawn.append(native.made - before)

        assert not native.living & lately, "a sender of the last 250 fences could still write to this engine"
        receiver.close()

    assert max(drawn) <= 15
    assert sum(drawn) <= 2 * len(drawn)
    assert not native.living
    assert len(factory._made) == 1


def test_a_sender_gets_no_port_that_a_receiver_had(
    native: type[Native], ports: PortMemory, factory: MooncakeFactory
) -> None:
    """It listens too, and its KV cache can be written to there: by a push that was paused before the receiver's process ended."""
    native.random = random.Random(7)
    factory.sender([(0, 64)])
    ports.add(native.living, keep=100)
    native.living, native.random = set(), random.Random(7)  # the next one would draw the same

    factory.sender([(0, 64)])

    assert native.living
    assert not native.living & ports.recent()


def test_the_ports_of_an_engine_that_lived_long_count_as_used_when_it_ends(
    native: type[Native], ports: PortMemory, factory: MooncakeFactory
) -> None:
    """Until then peers write to them."""
    old = factory.receiver([(0, 64)])
    had = set(native.living)
    for _ in range(300):  # of the other domain: by their number the old one's ports are forgotten
        factory.receiver([(0, 64)]).close()
    assert not had & ports.recent()
    old.close()

    assert had <= ports.recent()
