"""Tokens that come to the host late, without anybody waiting for more than them."""

import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from baton.model_runner.tokens import transfer
from baton.model_runner.tokens.handles import DeviceLostError, TokenTransferError
from baton.model_runner.tokens.lanes import LaneEvent
from baton.model_runner.tokens.packing import most_bytes
from baton.model_runner.tokens.slots import SLOTS, Slot
from baton.model_runner.tokens.transfer import TokenTransfer, transfer_for
from tests.support.fake_device import FakeDevice, Run
from tests.support.fake_lane import FakeLane, blocking_tolist, sampled

SIZES = most_bytes(max_num_seqs=4, speculative_tokens=3, top_logprobs=2)
SOON_S = 0.05
LATE_S = 20.0  # against hanging


class Rig:
    """A transfer on the fake device."""

    def __init__(self, run: Run, slots: int = 2) -> None:
        self.device = FakeDevice(1, run)
        self.compute = self.device.stream()
        self.lane = FakeLane(self.device, self.compute)
        self.transfer = TokenTransfer(self.lane, SIZES, slots=slots)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Nothing runs but what a thread waits for; the test itself takes."""
    made = Rig(Run.ON_WAIT)
    yield made
    made.transfer.stop()
    made.device.close()


@pytest.fixture
def stuck() -> Iterator[Rig]:
    """A device that never gets on, with a taker."""
    made = Rig(Run.ON_ADVANCE)
    made.transfer.start()
    yield made
    made.device.close()
    made.transfer.stop()


def test_a_step_comes_as_it_was_sampled(rig: Rig) -> None:
    """Everything that belongs to it comes, each in its own shape and dtype, in one copy to the host.

    As in vllm-ascend #5093, #10205: int64 on the device, int32 on the host; the copy waited, and large ids were others.
    """
    ids = sampled(rig.compute, 7, 8, -1, 9, -1, -1, columns=3)
    logprobs = torch.tensor([[-0.5, -1.5]])
    wide = sampled(rig.compute, (1 << 40) + 1, dtype=torch.int64)

    handle = rig.transfer.submit({"ids": ids, "logprobs": logprobs, "wide": wide})
    waited = rig.device.waits.total()
    assert not ids.any()  # neither the model nor the copy has run
    rig.transfer.take()
    found = handle.result()

    assert found["ids"].tolist() == [[7, 8, -1], [9, -1, -1]]
    assert found["ids"].dtype == torch.int32
    assert torch.equal(found["logprobs"], logprobs)
    assert found["wide"].item() == (1 << 40) + 1
    assert rig.lane.copies_to_host == 1
    assert waited == 0  # the model thread has gone on


def test_a_tensor_without_another_holder_is_there_until_it_is_copied(rig: Rig) -> None:
    """As in vLLM #29623: the copy stream read memory that the allocator had given away."""
    handle = rig.transfer.submit({"ids": sampled(rig.compute, 7)})
    rig.compute.synchronize()  # the kernel that wrote it holds it no more
    rig.transfer.take()

    assert handle.result()["ids"].item() == 7


def test_a_step_does_not_wait_for_the_next_one(rig: Rig) -> None:
    """As in vLLM #39115: an event that was recorded again made its waiter wait for the step after its own."""
    rig.transfer.submit({"ids": sampled(rig.compute, 1)})
    second = sampled(rig.compute, 2)
    rig.transfer.submit({"ids": second})
    rig.transfer.take()  # of the first

    assert second.item() == 0


def test_a_kv_copy_on_another_stream_does_not_delay_a_token() -> None:
    """A blocking `tolist` waits for them (vLLM #22754), an event of the copy stream does not; how long is the fake's own time."""
    delays_ms = {}
    for way in ("blocking", "event"):
        rig = Rig(Run.ON_WAIT)
        clock_ms = [0.0]  # of what has run
        kv_copies = rig.device.stream()
        kv_copies.launch(partial(clock_ms.append, 50.0))
        ids = sampled(rig.compute, 3)
        if way == "blocking":
            assert blocking_tolist(rig.device, ids) == [[3]]
        else:
            handle = rig.transfer.submit({"ids": ids})
            rig.transfer.take()
            assert handle.result()["ids"].tolist() == [[3]]
        delays_ms[way] = sum(clock_ms)
        rig.device.close()

    assert delays_ms == {"blocking": 50.0, "event": 0.0}


def test_a_slot_is_not_reused_before_it_was_read(rig: Rig) -> None:
    """With every slot in flight, the next step waits for one, and does not write over what has not been read."""
    full = TokenTransfer(rig.lane, SIZES, slots=1)
    first = full.submit({"ids": sampled(rig.compute, 1)})
    rig.device.synchronize()  # the copy has run; the step has not read it
    second = threading.Thread(target=full.submit, args=({"ids": sampled(rig.compute, 2)},), daemon=True)
    second.start()
    second.join(SOON_S)
    waited = second.is_alive()
    full.take()
    second.join(LATE_S)

    assert waited
    assert not second.is_alive()
    assert first.result()["ids"].tolist() == [[1]]
    assert full.counts.slot_waits == 1


@pytest.mark.parametrize("what", ["fell off the bus", "no such memory"])
def test_a_lost_device_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Not a hang: of the step that was under way, of those behind it, and of all later ones (vLLM #42897). So is what goes wrong on the host."""

    def fail(_flight: object) -> None:
        raise RuntimeError(what)

    handles = [rig.transfer.submit({"ids": sampled(rig.compute, step)}) for step in (1, 2)]
    if what == "no such memory":
        monkeypatch.setattr(rig.transfer, "_copy_out", fail)
    else:
        rig.device.lose(what)

    assert rig.transfer.take() is False

    for handle in handles:
        with pytest.raises(DeviceLostError, match=what) as caught:
            handle.result()
        assert caught.value.__cause__ is not None
    with pytest.raises(DeviceLostError):
        rig.transfer.submit({"ids": sampled(rig.compute, 3)})


def test_a_step_that_waits_for_a_slot_hears_of_a_lost_device(rig: Rig) -> None:
    """At once: no slot is given back any more, and the step watchdog waits 300 s."""
    full = TokenTransfer(rig.lane, SIZES, slots=1)
    full.submit({"ids": sampled(rig.compute, 1)})
    rig.device.lose("fell off the bus")
    loser = threading.Timer(SOON_S, full.take)
    loser.start()

    with pytest.raises(DeviceLostError, match="fell off the bus"):
        full.submit({"ids": sampled(rig.compute, 2)})
    loser.join()


def test_a_taker_that_cannot_start_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose device is gone already: readers are told, and do not wait for the watchdog."""

    def fail() -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(rig.lane, "adopt_thread", fail)
    handle = rig.transfer.submit({"ids": sampled(rig.compute, 1)})

    rig.transfer.start()

    with pytest.raises(DeviceLostError, match="no such device"):
        handle.result()


def test_a_step_that_is_issued_as_the_device_goes_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has found no error yet, and comes too late to be among those that are told of it."""
    record = rig.lane.record

    def record_and_lose(event: LaneEvent) -> None:
        record(event)
        rig.device.lose("gone")
        rig.transfer.take()

    rig.transfer.submit({"ids": sampled(rig.compute, 1)})
    monkeypatch.setattr(rig.lane, "record", record_and_lose)

    handle = rig.transfer.submit({"ids": sampled(rig.compute, 2)})

    with pytest.raises(DeviceLostError, match="gone"):
        handle.result()


def test_what_a_device_that_hangs_may_still_read_is_kept(stuck: Rig) -> None:
    """It may go on one day, when another tensor would have the memory; that of steps behind the one it hangs in too."""
    first, second = torch.ones(1, 1), torch.ones(1, 1)
    sources = weakref.ref(first), weakref.ref(second)
    handles = [stuck.transfer.submit({"ids": first}), stuck.transfer.submit({"ids": second})]
    del first, second
    stuck.transfer._break(TokenTransferError("the runner has stopped"))

    for handle in handles:
        with pytest.raises(TokenTransferError):
            handle.result()

    assert None not in [source() for source in sources]


def test_a_slot_is_free_when_it_has_been_copied_out_and_not_before(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model thread may ask for a slot in the middle of it."""
    in_use: list[int] = []
    copy_out = rig.transfer._copy_out

    def look(flight: Any) -> None:
        in_use.append(rig.transfer.slots[0])
        copy_out(flight)

    monkeypatch.setattr(rig.transfer, "_copy_out", look)
    rig.transfer.submit({"ids": sampled(rig.compute, 1)})
    rig.transfer.take()

    assert (in_use, rig.transfer.slots[0]) == ([1], 0)


def test_steps_of_inference_mode_are_taken_by_another_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM's are: its model thread is in that mode, which other threads do not share. The taker belongs to the device."""
    adopted: list[str] = []
    monkeypatch.setattr(rig.lane, "adopt_thread", lambda: adopted.append(threading.current_thread().name))
    rig.transfer.start()

    with torch.inference_mode():
        handles = [
            rig.transfer.submit({"ids": torch.full((1, 1), step), "logprobs": torch.full((1, 2), 0.5)})
            for step in range(5)
        ]

    assert [handle.result()["ids"].item() for handle in handles] == [0, 1, 2, 3, 4]
    assert adopted == ["token-transfer"]


def test_a_step_that_comes_as_the_runner_stops_is_not_taken(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readers have been told that it does not come; its slot is never used again."""
    handle = rig.transfer.submit({"ids": sampled(rig.compute, 1)})
    monkeypatch.setattr(rig.transfer._flights[0].slot.event, "synchronize", rig.transfer.stop)

    assert rig.transfer.take() is False

    with pytest.raises(TokenTransferError) as stopped:
        handle.result()
    assert not isinstance(stopped.value, DeviceLostError)
    assert rig.transfer.slots == (1, 2)


def test_stopping_waits_for_the_taker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """When `stop` returns, nothing of this runner uses the device any more."""
    ended: list[bool] = []
    monkeypatch.setattr(rig.lane, "adopt_thread", lambda: ended.append(threading.Event().wait(SOON_S)))
    rig.transfer.start()

    rig.transfer.stop()

    assert ended


def test_stopping_is_bounded_and_tells_who_waits(stuck: Rig) -> None:
    """A runner can stop although its device hangs."""
    stuck.transfer.submit({"ids": sampled(stuck.compute, 1)})
    stuck.device.lose()
    stuck.transfer.stop()
    stuck.transfer.stop()

    with pytest.raises(TokenTransferError):
        stuck.transfer.submit({"ids": sampled(stuck.compute, 2)})


def test_a_step_beyond_the_limits_gets_a_larger_slot(rig: Rig) -> None:
    """Logprobs of the whole vocabulary, say: counted, since making pinned memory can stall a device."""
    tops = torch.arange(1 << 15).to(torch.uint8)  # with the other tensor's, a byte more than a power of two

    handle = rig.transfer.submit({"logprobs": tops, "more": torch.ones(1, dtype=torch.uint8)})
    rig.transfer.take()

    assert torch.equal(handle.result()["logprobs"], tops)
    assert handle.result()["more"].item() == 1
    assert rig.transfer.counts.grown == 1
    assert not Slot(rig.lane, 16).grow(16)


def test_a_device_has_a_transfer_of_its_own(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the slots that asynchronous scheduling needs."""
    monkeypatch.setattr(transfer, "StreamLane", {torch.device("cuda", 1): rig.lane}.__getitem__)

    assert transfer_for(torch.device("cuda", 1), SIZES).slots == (0, SLOTS)


def test_a_host_has_tokens_at_once() -> None:
    """Where nothing is late there is no thread, and the result is there when `submit` returns."""
    transfer = transfer_for(torch.device("cpu"), SIZES)
    transfer.start()
    ids = torch.tensor([[1], [2]], dtype=torch.int32)
    expanded = torch.tensor([5]).expand(3)  # not contiguous

    handle = transfer.submit({"ids": ids, "counts": expanded})
    ids.zero_()

    assert handle.result()["ids"].tolist() == [[1], [2]]
    assert handle.result()["counts"].tolist() == [5, 5, 5]
    handle.synchronize()
    transfer.stop()
    assert (transfer.counts.submitted, transfer.counts.slots_in_use_max, transfer.slots) == (1, 0, (0, 0))
    assert sum(transfer.counts.snapshot()["histograms"]["to_host_s"]["counts"]) == 1
    assert "token-transfer" not in {thread.name for thread in threading.enumerate()}


def test_everything_is_counted(rig: Rig) -> None:
    """How long tokens took, how long readers waited, how full the ring was."""
    handles = [rig.transfer.submit({"ids": sampled(rig.compute, step)}) for step in (1, 2)]
    assert rig.transfer.slots == (2, 2)
    while rig.transfer.take():
        pass
    assert rig.transfer.take() is False
    for handle in handles:
        handle.result()

    seen = rig.transfer.counts.snapshot()

    assert rig.transfer.slots == (0, 2)
    assert seen["submitted"] == seen["slots_in_use_max"] == 2
    assert sum(seen["histograms"]["to_host_s"]["counts"]) == 2
    assert sum(seen["histograms"]["wait_s"]["counts"]) == 2
    assert (seen["slot_waits"], seen["grown"]) == (0, 0)


def test_a_taker_serves_readers_in_other_threads() -> None:
    """With real threads and a device that is late: each reader gets its own step."""
    rig = Rig(Run.BACKGROUND, slots=2)
    rig.transfer.start()
    try:
        handles = [rig.transfer.submit({"ids": sampled(rig.compute, step)}) for step in range(40)]
        assert [handle.result()["ids"].item() for handle in handles] == list(range(40))
        assert rig.device.waits[threading.current_thread().name] == 0
    finally:
        rig.transfer.stop()
        rig.device.close()
