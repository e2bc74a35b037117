"""What went wrong in other runners, one test each, and each shown to notice it when the cure is taken away."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from baton.model_runner.tokens import lanes, slots, transfer
from baton.model_runner.tokens.packing import Sizes
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.support.fake_device import FakeDevice, Run
from tests.support.fake_lane import FakeLane, sampled

Problem = Callable[[], str]
MAX_MODEL_LEN, MAX_NUM_SEQS = 16, 64


class Rig:
    """A fake device, and a transfer whose reader is the test."""

    def __init__(self, **sizes: int) -> None:
        self.device = FakeDevice(1, Run.ON_WAIT)
        self.compute = self.device.stream()
        self.lane = FakeLane(self.device, self.compute)
        self.transfer = TokenTransfer(
            self.lane, Sizes(**{"max_num_seqs": MAX_NUM_SEQS, "top_logprobs": 0} | sizes), slots=2
        )


def a_batch_of_drafts_does_not_fit() -> str:
    """As in vLLM #28025: the buffer had one row for each token of a model's length, not one for each sequence."""
    rig = Rig(speculative_tokens=3)
    rig.transfer.submit({"ids": torch.zeros(MAX_NUM_SEQS, 4, dtype=torch.int64)})
    return "a slot was too small" if rig.transfer.counts.grown else ""


@contextmanager
def sized_by_model_length() -> Iterator[None]:
    """Slots as long as a prompt may be."""
    with patch.object(Sizes, "slot_bytes", MAX_MODEL_LEN * 8):
        yield


def a_cast_blocks_the_host() -> str:
    """As in vllm-ascend #5093, #10205: int64 on the device, int32 on the host; the copy waits, and large ids are others."""
    rig = Rig()
    wide = sampled(rig.compute, (1 << 40) + 1, dtype=torch.int64)
    handle = rig.transfer.submit({"ids": wide})
    if rig.device.waits.total():
        return "submitting waited for the device"
    rig.transfer.take()
    return "" if handle.result()["ids"].item() == (1 << 40) + 1 else "another id came"


@contextmanager
def slots_of_int32() -> Iterator[None]:
    """Slots of one dtype, whatever the sampler's is."""

    def part_of(memory: torch.Tensor, offset_bytes: int, like: torch.Tensor) -> torch.Tensor:
        return memory[offset_bytes : offset_bytes + like.numel() * 4].view(torch.int32).view(like.shape)

    with patch.object(transfer, "part_of", part_of):
        yield


def a_tensor_is_freed_before_it_is_copied() -> str:
    """As in vLLM #29623: the copy stream read memory that the allocator had given to somebody else."""
    rig = Rig()
    handle = rig.transfer.submit({"ids": sampled(rig.compute, 7)})  # nobody here holds the tensor
    rig.compute.synchronize()  # nor does the kernel that wrote it
    rig.transfer.take()
    found = handle.result()["ids"].item()
    return "" if found == 7 else f"{found:#x} came"


@contextmanager
def nobody_holds_sources() -> Iterator[None]:
    """Only the copy knows the tensor."""
    flight = transfer._Flight
    with patch.object(transfer, "_Flight", lambda slot, packing, handle, _, at: flight(slot, packing, handle, (), at)):
        yield


def a_slot_is_written_before_it_is_read() -> str:
    """One buffer for all steps: right as long as every step waits for its own tokens, and no longer."""
    rig = Rig()
    handles = []
    for step in range(4):
        handles.append(rig.transfer.submit({"ids": sampled(rig.compute, step)}))
        if step % 2:
            rig.device.synchronize()
            while rig.transfer.take():
                pass
    found = [handle.result()["ids"].item() for handle in handles]
    return "" if found == [0, 1, 2, 3] else f"steps were mixed: {found}"


@contextmanager
def one_slot_for_all() -> Iterator[None]:
    """A ring of one slot that is always free."""

    def acquire(ring: slots.Ring) -> slots.Slot:
        return ring._free[0]

    with patch.object(slots.Ring, "acquire", acquire), patch.object(slots.Ring, "release", lambda ring, slot: None):
        yield


def an_event_stands_for_a_later_step() -> str:
    """As in vLLM #39115: an event that was recorded anew made its waiter wait for the step after his own."""
    rig = Rig()
    rig.transfer.submit({"ids": sampled(rig.compute, 1)})
    second = sampled(rig.compute, 2)
    rig.transfer.submit({"ids": second})
    rig.transfer.take()  # of the first
    return "the first step waited for the second" if second.item() == 2 else ""


@contextmanager
def one_event_for_all() -> Iterator[None]:
    """One event, recorded anew for each step."""
    make = FakeLane.event
    made: dict[int, Any] = {}

    def event(lane: FakeLane) -> Any:
        return made.setdefault(id(lane), make(lane))

    with patch.object(FakeLane, "event", event):
        yield


def a_waiter_spins() -> str:
    """As in vLLM #47081: `torch.Event(blocking=True)` ignores the flag on CUDA; only the module's own event sleeps."""
    asked: list[dict[str, Any]] = []
    module = SimpleNamespace(Stream=lambda device: None, Event=lambda **how: asked.append(how))
    with patch.object(torch, "get_device_module", lambda device: module):
        lanes.StreamLane(torch.device("cuda", 0)).event()
    return "" if asked == [{"blocking": True}] else f"the event was made with {asked}"


@contextmanager
def torch_events() -> Iterator[None]:
    """Events that are not made by the device's module."""
    with patch.object(lanes.StreamLane, "event", lambda lane: None):
        yield


BUGS: list[tuple[Problem, Callable[[], Any]]] = [
    (a_batch_of_drafts_does_not_fit, sized_by_model_length),
    (a_cast_blocks_the_host, slots_of_int32),
    (a_tensor_is_freed_before_it_is_copied, nobody_holds_sources),
    (a_slot_is_written_before_it_is_read, one_slot_for_all),
    (an_event_stands_for_a_later_step, one_event_for_all),
    (a_waiter_spins, torch_events),
]


@pytest.mark.parametrize(("problem", "without_cure"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_a_past_bug_stays_away(problem: Problem, without_cure: Callable[[], Any]) -> None:
    """It does not happen here, and this test would see it."""
    assert problem() == ""

    with without_cure():
        assert problem() != ""
