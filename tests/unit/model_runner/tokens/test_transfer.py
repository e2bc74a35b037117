"""Tokens that come to the host late, without anybody waiting for more than them."""

import threading
from functools import partial
from typing import Any

import pytest
import torch

from baton.model_runner.tokens import transfer
from baton.model_runner.tokens.slots import SLOTS, Slot
from baton.model_runner.tokens.transfer import TokenTransfer, transfer_for
from tests.support.fake_device import Run
from tests.support.fake_lane import blocking_tolist, sampled
from tests.unit.model_runner.tokens.rig import SIZES, SOON_S, Rig

LATE_S = 20.0  # against hanging


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
