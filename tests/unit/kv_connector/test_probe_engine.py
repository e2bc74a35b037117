import ctypes
import io
import os
import sys
from unittest.mock import Mock

import msgspec
import pytest

from baton.contracts.probe import MIB, Order, Place, Push
from baton.kv_connector.engine import probe
from baton.kv_connector.engine.probe import (
    ENOUGH_S,
    FIRST_SIZE_BYTES,
    SMALL_BYTES,
    SMALL_PUSHES,
    PushFailedError,
    measure,
    pusher,
)
from tests.support.memory_engine import MemoryFabric

SIZE = 32 * MIB


class Line:
    """A link of a given speed; it fails from the given push on."""

    def __init__(self, bytes_per_s: float, fails_at: int = -1) -> None:
        self.sizes: list[int] = []
        self.pauses: list[float] = []
        self._bytes_per_s = bytes_per_s
        self._fails_at = fails_at

    def push(self, size_bytes: int) -> float:
        if len(self.sizes) == self._fails_at:
            raise PushFailedError("it broke")
        self.sizes.append(size_bytes)
        return size_bytes / self._bytes_per_s


def test_bandwidth_is_that_of_a_push_which_takes_a_while() -> None:
    """Not of the first ones, which tell of the connection and of what a shaper lets through at once."""
    line = Line(bytes_per_s=SMALL_BYTES * 2500)

    found = measure(line.push, size_bytes=SIZE, idle_s=3, sleep=line.pauses.append)

    assert found.problem == ""
    assert found.bytes_per_s == pytest.approx(SMALL_BYTES * 2500)
    assert found.latency_s == found.first_s == found.after_idle_s == pytest.approx(1 / 2500)
    assert line.sizes[-2] / (SMALL_BYTES * 2500) >= ENOUGH_S
    assert line.pauses == [3]


@pytest.mark.parametrize(
    ("bytes_per_s", "size_bytes", "pushed"),
    [(1e12, MIB, FIRST_SIZE_BYTES + MIB), (FIRST_SIZE_BYTES, SIZE, FIRST_SIZE_BYTES)],
)
def test_a_link_is_not_kept_busy_for_longer_than_needed(bytes_per_s: float, size_bytes: int, pushed: int) -> None:
    """However fast it is, no push is larger than allowed; on a slow one, one that takes long enough is all."""
    line = Line(bytes_per_s)

    measure(line.push, size_bytes=size_bytes, idle_s=0, sleep=line.pauses.append)

    assert sum(size for size in line.sizes if size > SMALL_BYTES) == pushed


@pytest.mark.parametrize(
    ("fails_at", "known"),
    [
        (0, ()),
        (1, ("first_s",)),
        (1 + SMALL_PUSHES, ("first_s", "latency_s")),
        (2 + SMALL_PUSHES, ("first_s", "latency_s", "bytes_per_s")),
    ],
)
def test_what_was_measured_before_a_failure_is_kept(fails_at: int, known: tuple[str, ...]) -> None:
    """It tells whether the link ever worked: a failure after the pause is another thing than one at the start."""
    line = Line(bytes_per_s=FIRST_SIZE_BYTES, fails_at=fails_at)

    found = measure(line.push, size_bytes=SIZE, idle_s=0, sleep=line.pauses.append)

    assert found.problem == "it broke"
    named = ("first_s", "latency_s", "bytes_per_s", "after_idle_s")
    assert tuple(name for name in named if getattr(found, name) is not None) == known


@pytest.mark.parametrize("size_bytes", [1, MIB, 2 * MIB + 5])
def test_all_bytes_are_pushed_to_where_they_belong(size_bytes: int) -> None:
    """In pieces of a MiB, the last one shorter."""
    fabric = MemoryFabric()
    source, target = (ctypes.create_string_buffer(3 * MIB) for _ in range(2))
    source.raw = bytes(range(1, 256)) * (3 * MIB // 255) + bytes(3 * MIB % 255)
    start, end = ctypes.addressof(source), ctypes.addressof(target)
    session = fabric.factory().receiver([(end, 3 * MIB)]).session
    order = Push(session=session, address=end, size_bytes=3 * MIB, idle_s=0)

    pusher(fabric.factory().sender([(start, 3 * MIB)]), start, order)(size_bytes)

    assert target.raw[:size_bytes] == source.raw[:size_bytes]
    assert not any(target.raw[size_bytes:])


def test_a_failed_push_says_so() -> None:
    """No receiver has this session."""
    fabric = MemoryFabric()
    source = ctypes.create_string_buffer(MIB)
    start = ctypes.addressof(source)
    order = Push(session="nobody:1", address=start, size_bytes=MIB, idle_s=0)

    with pytest.raises(PushFailedError, match="a push of 64 B failed"):
        pusher(fabric.factory().sender([(start, MIB)]), start, order)(64)


def test_an_engine_that_cannot_be_made_ends_the_process_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parent reads what it says."""
    order = Order(place=Place(host="h", protocol="tcp"), what=Push(session="s:1", address=1, size_bytes=MIB, idle_s=0))
    monkeypatch.setattr(os, "nice", Mock())
    monkeypatch.setattr(sys, "stdin", io.StringIO(msgspec.json.encode(order).decode() + "\n"))
    monkeypatch.setattr(probe, "_serve", Mock(side_effect=PushFailedError("no such card")))

    assert probe.main() == probe.EXIT_FAILED
    assert capsys.readouterr().err == "no such card\n"
