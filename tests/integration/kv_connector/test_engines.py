"""One contract, two engines: real Mooncake over loopback TCP, and the one in memory."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from baton.kv_connector.engine.base import EngineFactory, Push
from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.errors import EngineError
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan
from baton.kv_connector.layout.regions import Span
from tests.support.memory_engine import MemoryFabric

MIB = 1 << 20


class Buffer:
    """Memory of this process with an address."""

    def __init__(self, size: int, fill: int = 0) -> None:
        self._memory = (ctypes.c_ubyte * size)()
        ctypes.memset(self._memory, fill, size)
        self.addr = ctypes.addressof(self._memory)
        self.size = size

    @property
    def spans(self) -> list[Span]:
        return [(self.addr, self.size)]

    def read(self) -> bytes:
        return bytes(self._memory)

    def fill(self, value: int) -> None:
        ctypes.memset(self._memory, value, self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """An engine under test, and how the test makes time pass in it."""

    prefill: EngineFactory
    decode: EngineFactory
    hold: Callable[[], None]  # from now on writes take their time
    settle: Callable[[], None]  # whatever is on the way gets its chance to land


@pytest.fixture(params=["memory", "mooncake"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    if request.param == "memory":
        fabric = MemoryFabric()
        yield Rig(
            prefill=fabric.factory("p"),
            decode=fabric.factory("d"),
            hold=lambda: setattr(fabric, "automatic", False),
            settle=lambda: void(fabric.land_all()),
        )
        return
    prefill, decode = MooncakeFactory(host="127.0.0.1"), MooncakeFactory(host="127.0.0.1")
    yield Rig(prefill=prefill, decode=decode, hold=lambda: None, settle=lambda: time.sleep(0.5))
    prefill.close()
    decode.close()


def void(_: object) -> None:
    """Drop a result."""


def finish(push: Push, timeout_s: float = 8.0) -> bool:
    """Poll, sleeping, until the push has ended."""
    give_up = time.monotonic() + timeout_s
    while (result := push.poll()) is None:
        assert time.monotonic() < give_up, "the push does not end"
        time.sleep(0.0005)
    return result


def pieces(src: Buffer, dst: Buffer, count: int) -> CopyPlan:
    """The whole buffer in `count` copies."""
    size = src.size // count
    return CopyPlan.of(Copy(src.addr + i * size, dst.addr + i * size, size) for i in range(count))


def test_a_write_lands(rig: Rig) -> None:
    """After poll() is True the bytes are there, and the answer stays True."""
    src, dst = Buffer(MIB, 7), Buffer(MIB)
    target = rig.decode.receiver(dst.spans).session

    push = rig.prefill.sender(src.spans).submit(target, CopyPlan.of([Copy(src.addr + 100, dst.addr + 200, 1000)]))

    assert finish(push) is True
    assert push.poll() is True
    assert dst.read() == bytes(200) + b"\x07" * 1000 + bytes(MIB - 1200)


def test_many_descriptors(rig: Rig) -> None:
    """More copies than may be in flight at once are one push all the same."""
    src, dst = Buffer(3000 * 64, 9), Buffer(3000 * 64)
    sender, receiver = rig.prefill.sender(src.spans), rig.decode.receiver(dst.spans)

    assert finish(sender.submit(receiver.session, pieces(src, dst, 3000))) is True

    assert dst.read() == src.read()


def test_a_push_of_nothing_is_done(rig: Rig) -> None:
    """A rank with nothing to send still gets its answer."""
    src, dst = Buffer(64), Buffer(64)

    assert finish(rig.prefill.sender(src.spans).submit(rig.decode.receiver(dst.spans).session, CopyPlan.of([]))) is True


def test_an_unknown_target_fails(rig: Rig) -> None:
    """A peer that is not there is a failed push, never an exception."""
    src, dst = Buffer(64), Buffer(64)

    push = rig.prefill.sender(src.spans).submit("127.0.0.1:9", pieces(src, dst, 1))

    assert finish(push) is False
    assert push.poll() is False


def test_a_destination_outside_the_spans_fails(rig: Rig) -> None:
    """A receiver's memory beyond what it registered is out of reach, and the push says so."""
    src, memory = Buffer(128, 5), Buffer(128)
    sender = rig.prefill.sender(src.spans)
    target = rig.decode.receiver([(memory.addr, 64)]).session

    assert finish(sender.submit(target, CopyPlan.of([Copy(src.addr, memory.addr + 32, 64)]))) is False
    assert finish(sender.submit(target, CopyPlan.of([Copy(src.addr, 0x1000, 64)]))) is False

    rig.settle()
    assert memory.read() == bytes(128)
    assert finish(sender.submit(target, CopyPlan.of([Copy(src.addr, memory.addr, 64)]))) is True


def test_no_memory_is_no_engine(rig: Rig) -> None:
    """Registering nothing is a mistake of the caller's."""
    with pytest.raises(EngineError, match="no memory"):
        rig.prefill.sender([])


def test_close_is_a_fence(rig: Rig) -> None:
    """A push is under way, the receiver is closed: from then on the memory does not change (I3)."""
    src, dst = Buffer(48 * MIB, 1), Buffer(48 * MIB)
    sender, receiver = rig.prefill.sender(src.spans), rig.decode.receiver(dst.spans)
    assert finish(sender.submit(receiver.session, CopyPlan.of([Copy(src.addr, dst.addr, 1)]))) is True
    rig.hold()
    push = sender.submit(receiver.session, pieces(src, dst, 48))
    assert push.poll() is None

    receiver.close()
    dst.fill(2)

    rig.settle()
    assert finish(push) is False
    rig.settle()
    assert dst.read() == b"\x02" * dst.size
    receiver.close()


def test_a_new_receiver_works_at_once_after_close(rig: Rig) -> None:
    """The fenced domain's successor has another name and takes pushes of the same sender."""
    src, dst = Buffer(64, 3), Buffer(64)
    sender, old = rig.prefill.sender(src.spans), rig.decode.receiver(dst.spans)
    assert finish(sender.submit(old.session, pieces(src, dst, 1))) is True
    dst.fill(0)
    old.close()

    new = rig.decode.receiver(dst.spans)

    assert new.session != old.session
    assert finish(sender.submit(new.session, pieces(src, dst, 1))) is True
    assert dst.read() == src.read()
    assert finish(sender.submit(old.session, pieces(src, dst, 1))) is False


def test_two_receivers_over_the_same_memory_are_independent(rig: Rig) -> None:
    """Fencing one domain leaves the pushes of the other alone (E3)."""
    src, dst = Buffer(16 * MIB, 4), Buffer(16 * MIB)
    sender = rig.prefill.sender(src.spans)
    one, other = rig.decode.receiver(dst.spans), rig.decode.receiver(dst.spans)
    rig.hold()
    push = sender.submit(other.session, pieces(src, dst, 16))

    one.close()

    rig.settle()
    assert finish(push) is True
    assert dst.read() == src.read()
    assert finish(sender.submit(one.session, pieces(src, dst, 1))) is False


def test_threads_may_push_at_once(rig: Rig) -> None:
    """Four threads with one sender: every byte lands."""
    src, dst = Buffer(400 * 8192, 6), Buffer(400 * 8192)
    sender, receiver = rig.prefill.sender(src.spans), rig.decode.receiver(dst.spans)
    copies = list(pieces(src, dst, 400))
    results: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda i=i: results.extend(
                finish(sender.submit(receiver.session, CopyPlan.of(copies[j : j + 20])))
                for j in range(i * 100, i * 100 + 100, 20)
            )
        )
        for i in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [True] * 20
    assert dst.read() == src.read()


def test_a_closed_factory_has_no_engines(rig: Rig) -> None:
    """Closing is idempotent, ends the receivers, and a sender that outlived it fails instead of crashing."""
    src, dst = Buffer(64, 1), Buffer(64)
    sender, receiver = rig.prefill.sender(src.spans), rig.decode.receiver(dst.spans)

    for factory in (rig.prefill, rig.decode, rig.prefill, rig.decode):
        factory.close()

    assert finish(sender.submit(receiver.session, pieces(src, dst, 1))) is False
    assert dst.read() == bytes(64)


def test_the_engine_in_memory_lands_the_bytes_of_a_failed_push_later() -> None:
    """E1, as tests of the hand-off rely on it: whatever becomes of the source, unless the receiver has been closed."""
    fabric, src, dst = MemoryFabric(), Buffer(64, 7), Buffer(64)
    sender, receiver = fabric.factory("p").sender(src.spans), fabric.factory("d").receiver(dst.spans)
    fabric.fail_next(2)
    push = sender.submit(receiver.session, pieces(src, dst, 1))
    assert (push.poll(), dst.read()) == (False, bytes(64))

    src.fill(9)
    assert fabric.land_all() == 1
    assert (push.poll(), dst.read()) == (False, b"\x07" * 64)

    sender.submit(receiver.session, pieces(src, dst, 1))
    receiver.close()
    assert fabric.land_all() == 0
    assert dst.read() == b"\x07" * 64
