"""What the in-memory engine does on request, so that tests of the hand-off can rely on it."""

import ctypes

import pytest

from baton.kv_connector.engine.memory import MemoryFabric, MemoryReceiver, MemorySender
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan

SIZE = 8


class World:
    """One sender, one receiver, eight bytes each."""

    def __init__(self) -> None:
        self.fabric = MemoryFabric(automatic=False)
        self._src, self._dst = (ctypes.c_ubyte * SIZE)(*range(1, 9)), (ctypes.c_ubyte * SIZE)()
        self.src, self.dst = ctypes.addressof(self._src), ctypes.addressof(self._dst)
        self.sender: MemorySender = self.fabric.factory("p", max_in_flight=10).sender([(self.src, SIZE)])
        self.receiver: MemoryReceiver = self.fabric.factory("d").receiver([(self.dst, SIZE)])
        self.plan = CopyPlan.of(Copy(self.src + i, self.dst + i, 1) for i in range(SIZE))
        self.first = CopyPlan.of([next(iter(self.plan))])

    @property
    def received(self) -> list[int]:
        """The receiver's memory."""
        return list(self._dst)

    def overwrite_source(self) -> None:
        """The sender's blocks belong to another request now."""
        ctypes.memset(self._src, 99, SIZE)


@pytest.fixture
def world() -> World:
    """A fabric in which nothing lands by itself."""
    return World()


def test_writes_land_one_by_one(world: World) -> None:
    """The test decides when, and the push is done with its last write."""
    push = world.sender.submit(world.receiver.session, world.plan)

    assert world.fabric.land(3) == 3
    assert world.received == [1, 2, 3, 0, 0, 0, 0, 0]
    assert push.poll() is None
    assert world.sender.capacity(world.receiver.session) == 10 - 5
    assert world.fabric.land_all() == 5
    assert push.poll() is True
    assert world.fabric.land() == 0


def test_a_failed_push_lands_later(world: World) -> None:
    """E1: failure is reported at once, the bytes come when the receiver may have given the block away."""
    world.fabric.fail_next()

    push = world.sender.submit(world.receiver.session, world.plan)

    assert push.poll() is False
    assert world.received == [0] * SIZE
    world.fabric.land_all()
    assert world.received == list(range(1, 9))
    assert push.poll() is False


def test_a_running_push_reads_its_source_when_it_lands(world: World) -> None:
    """I2: a source that is overwritten too early shows in what arrives."""
    world.sender.submit(world.receiver.session, world.plan)
    world.overwrite_source()
    world.fabric.land_all()

    assert world.received == [99] * SIZE


def test_cut_fails_what_is_under_way_and_what_comes(world: World) -> None:
    """E2: behind a cut link the bytes wait in socket buffers and land when it heals."""
    push = world.sender.submit(world.receiver.session, world.plan)
    world.fabric.land(2)

    world.fabric.cut(world.receiver.session)
    later = world.sender.submit(world.receiver.session, world.first)
    world.overwrite_source()

    assert (push.poll(), later.poll()) == (False, False)
    world.fabric.land_all()
    assert world.received == list(range(1, 9))
    world.fabric.heal(world.receiver.session)
    healed = world.sender.submit(world.receiver.session, world.first)
    world.fabric.land_all()
    assert healed.poll() is True


def test_a_dead_sender_leaves_its_bytes(world: World) -> None:
    """E2: the kernel goes on sending for a process that is no more."""
    push = world.sender.submit(world.receiver.session, world.plan)

    world.sender.close()
    world.overwrite_source()

    assert push.poll() is False
    world.fabric.land_all()
    assert world.received == list(range(1, 9))


def test_nothing_lands_in_a_closed_receiver(world: World) -> None:
    """The fence holds for bytes of a dirty push as well."""
    world.fabric.fail_next()
    world.sender.submit(world.receiver.session, world.plan)

    world.receiver.close()

    assert world.fabric.land_all() == 0
    assert world.received == [0] * SIZE
