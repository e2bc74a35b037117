"""The thread that pushes: what one call takes, what is counted, and how it ends. Its looks are taken by the test."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.engine.base import Push as EnginePush
from baton.kv_connector.handoff.outgoing import Progress
from baton.kv_connector.layout.copy_plan import CopyPlan
from baton.kv_connector.layout.pairing import RegionPair
from baton.kv_connector.worker_side import sender as module
from baton.kv_connector.worker_side.sender import Sender
from baton.kv_connector.worker_side.sync import Handover
from tests.support.ranks import BLOCK_BYTES, LAYERS
from tests.unit.kv_connector.worker_side.parts import P_PARTS, Pair, Parts, fail


class Engine:
    """Takes pushes, and says of each what the test has decided: a list for the first ones, None while under way."""

    def __init__(self, *outcomes: Any) -> None:
        self.plans: list[CopyPlan] = []
        self.targets: list[str] = []
        self.outcomes: list[Any] = list(outcomes)
        self.reads_in: list[str] = []

    def submit(self, target: str, plan: CopyPlan) -> EnginePush:
        if "refuse" in self.outcomes:
            raise RuntimeError("no such segment")
        self.plans.append(plan)
        self.targets.append(target)
        return Call(self, len(self.plans) - 1)

    def close(self) -> None:
        """Nothing is open."""

    def sender(self, _: Any) -> "Engine":
        return self


class Call:
    """One push."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine, self._number = engine, number

    def poll(self) -> bool | None:
        outcomes = self._engine.outcomes
        outcome: bool | Exception | None = outcomes[self._number] if self._number < len(outcomes) else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Rig(Pair):
    """A pair whose P has a real sender on a test's engine; no thread runs."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *outcomes: Any, **transfer: Any) -> None:
        self.engine = Engine(*outcomes)
        kept = {"Sender": Sender, "make_layer_sync": None}
        names = {place: name for place, name in P_PARTS.items() if place not in kept}
        patch.setattr("tests.unit.kv_connector.worker_side.parts.P_PARTS", names)
        self.waiters = Parts(module, {"DeviceWaiter": "waiter"}, patch)
        super().__init__(folder, patch, engines=lambda _, __: self.engine, **transfer)
        patch.setattr(module, "time", SimpleNamespace(monotonic=self.clock))
        self.sender = self.prefill._sender

    def three_blocks(self, *, until: int = 3) -> None:
        """Transfer `a` has three blocks, of which so many are written in every layer."""
        self.meet()
        self.reserve("a", 40, [7, 3, 4])
        self.carry()
        self.compute("a", tokens=40, blocks=[1, 2, 5], ready=until)
        self.carry()

    def look(self) -> None:
        """What the thread does when it has been woken."""
        self.sender.wake()
        self.sender._take_in(self.sender._wait())
        self.sender._look_after()
        self.sender._submit()


def test_one_push_takes_what_is_written_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the engine that D named; nothing is counted as pushed before it has ended."""
    rig = Rig(tmp_path, monkeypatch)
    rig.three_blocks()

    rig.look()

    [plan] = rig.engine.plans
    assert rig.engine.targets == ["e0"]
    copies = len(plan)
    assert plan.total_bytes == 3 * LAYERS * BLOCK_BYTES
    assert rig.sender.totals == {"pushes": 0, "failed_pushes": 0, "bytes": 0, "descriptors": copies}
    rig.look()
    assert len(rig.engine.plans) == 1

    rig.engine.outcomes = [True]
    rig.look()
    assert rig.sender.totals == {
        "pushes": 1,
        "failed_pushes": 0,
        "bytes": 3 * LAYERS * BLOCK_BYTES,
        "descriptors": copies,
    }
    assert rig.prefill.snapshot()["totals"]["committed"] == 1
    assert len(rig.p.sent()) == 1, "COMMIT leaves at once"


@pytest.mark.parametrize("outcome", [False, RuntimeError("it cannot be told"), "refuse"])
def test_a_push_that_fails_is_counted_and_taints_its_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    """E1: whatever it is, the thread goes on and the transfer is over."""
    rig = Rig(tmp_path, monkeypatch, outcome)
    rig.three_blocks()

    rig.look()
    rig.look()

    assert rig.p.sent() == [fail("a push failed", dirty=True)]
    copies = sum(map(len, rig.engine.plans))
    assert rig.sender.totals == {"pushes": 0, "failed_pushes": 1, "bytes": 0, "descriptors": copies}
    rig.look()
    assert rig.sender.totals["failed_pushes"] == 1


@pytest.mark.parametrize(
    ("bounds", "sizes"),
    [
        ({"push_max_bytes": 1}, [1] * 12),
        ({"push_max_bytes": 5 * BLOCK_BYTES}, [5, 5, 2]),
        ({"push_max_bytes": 5 * BLOCK_BYTES - 1}, [4, 4, 4]),
        ({"push_max_descriptors": 1}, [1] * 12),
        ({"push_max_descriptors": 7}, [7, 5]),
    ],
)
def test_a_call_is_bounded_in_bytes_and_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int], sizes: list[int]
) -> None:
    """In whole blocks of a layer, and at least one."""
    rig = Rig(tmp_path, monkeypatch, *[True] * 12, **bounds)
    rig.three_blocks()

    for _ in range(13):
        rig.look()

    assert [plan.total_bytes // BLOCK_BYTES for plan in rig.engine.plans] == sizes
    assert rig.prefill.snapshot()["totals"]["committed"] == 1


def test_blocks_that_take_several_copies_make_smaller_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those to other decode ranks stay as they are."""
    monkeypatch.setattr(RegionPair, "copies", 3)
    rig = Rig(tmp_path, monkeypatch, *[True] * 6, push_max_descriptors=7)
    rig.three_blocks()

    for _ in range(7):
        rig.look()

    assert [plan.total_bytes // BLOCK_BYTES for plan in rig.engine.plans] == [2] * 6
    assert (rig.sender._max_units, list(rig.sender._max_units_to.values())) == (7, [2])


def test_layers_go_together_until_they_are_worth_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 KiB; of a step without blocks there is nothing to divide by, and one layer is the least."""
    sender = Rig(tmp_path, monkeypatch).sender

    assert [sender.layers_at_once(blocks) for blocks in (0, 1, 3, 1023, 1024, 5000)] == [262_144, 1024, 342, 2, 1, 1]


def test_a_decode_rank_has_two_full_calls_under_way_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way cannot be called back; the next goes out when one has ended."""
    rig = Rig(tmp_path, monkeypatch, push_max_bytes=BLOCK_BYTES)
    rig.three_blocks()

    rig.look()
    rig.look()
    assert len(rig.engine.plans) == 2
    rig.engine.outcomes = [True]
    rig.look()
    assert len(rig.engine.plans) == 3


def test_layers_that_the_device_does_not_write_are_void_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D is told why. A tick asks the waiter, with the configured patience."""
    rig = Rig(tmp_path, monkeypatch, transfer_timeout_s=9.0)
    rig.three_blocks(until=0)
    handover = Handover([Progress("p-a", [], 3)], range(LAYERS), event := _Event())

    rig.sender.hand(handover)
    rig.sender.give_up(5.0)
    assert rig.waiters.asked() == [("waiter.watch", event, handover), ("waiter.give_up", 5.0)]
    assert rig.waiters.made["waiter"].kwargs["patience_s"] == 9.0
    rig.waiters.told("waiter", "failed", handover, "the device failed")

    assert rig.p.sent() == [fail("the device failed")]


def test_layers_that_the_device_has_written_are_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as written when the device passed them."""
    rig = Rig(tmp_path, monkeypatch)
    rig.three_blocks(until=0)
    rig.waiters.told("waiter", "passed", Handover([Progress("p-a", [], 3)], [1, 2], _Event()), 1234.5)

    rig.look()

    [plan] = rig.engine.plans
    assert plan.total_bytes == 2 * 3 * BLOCK_BYTES
    written = rig.prefill.timeline("a")["flows"][0]["written"]
    assert written[-2:] == [[234.5, 1], [234.5, 2]]


def test_the_thread_enters_the_device_pushes_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is woken by what is written; a stop waits for it, and one that was never started is no trouble."""
    rig = Rig(tmp_path, monkeypatch, True)
    rig.sender.stop()
    assert rig.waiters.asked() == [("waiter.stop",)]
    rig = Rig(tmp_path, monkeypatch, True)
    rig.sender._enter_device = lambda: rig.engine.reads_in.append(threading.current_thread().name)
    rig.sender.start()
    rig.three_blocks()
    deadline = time.monotonic() + 60
    while not rig.sender.totals["pushes"] and time.monotonic() < deadline:
        time.sleep(0.001)

    rig.sender.stop()

    assert rig.sender.totals["pushes"] == 1
    assert rig.engine.reads_in == ["baton-sender"]
    assert rig.waiters.asked() == [("waiter.start",), ("waiter.stop",)]
    assert not rig.sender._thread.is_alive()


class _Event:
    def synchronize(self) -> None:
        """Nothing runs here."""
