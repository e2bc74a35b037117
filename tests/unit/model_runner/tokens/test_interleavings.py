"""The ring in many random orders of device, taker and readers; steps are never mixed."""

import random
from collections import deque

import pytest
import torch

from baton.model_runner.tokens.handles import Handle
from baton.model_runner.tokens.packing import most_bytes
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.support.fake_device import FakeDevice, Run
from tests.support.fake_lane import FakeLane

STEPS = 6
SIZES = most_bytes(max_num_seqs=2, top_logprobs=0)


def mixed_steps(seed: int) -> list[tuple[int, list[int]]]:
    """Run one interleaving; return the steps that came as something else, with what came."""
    chance = random.Random(seed)
    device = FakeDevice(seed, Run.ON_WAIT)
    compute = device.stream()
    transfer = TokenTransfer(FakeLane(device, compute), SIZES, slots=chance.choice((1, 2, 3)))
    slowness = chance.choice((0.1, 0.5, 0.9))  # of the reader
    unread: deque[tuple[int, Handle]] = deque()
    wrong = []
    step = 0
    while step < STEPS or unread:
        in_use, slots = transfer.slots
        if step < STEPS and in_use < slots and chance.random() < 0.6:
            ids = torch.empty(2, dtype=torch.int32)
            compute.launch(lambda ids=ids, step=step: ids.copy_(torch.tensor([step, ~step])))  # type: ignore[misc]
            tensors = {"ids": ids, "more": ids} if chance.random() < 0.3 else {"ids": ids}
            unread.append((step, transfer.submit(tensors)))
            del ids, tensors
            step += 1
        device.advance(chance.randrange(4))
        if chance.random() > slowness or in_use == slots:
            transfer.take()
        if unread and (chance.random() > slowness or step == STEPS):
            transfer.take()
            copied_out = len(unread) - len(transfer._flights)
            if copied_out:
                at = chance.randrange(copied_out)
                expected, handle = unread[at]
                del unread[at]
                found = [tensor.tolist() for tensor in handle.result().values()]
                if any(values != [expected, ~expected] for values in found):
                    wrong.append((expected, found[0]))
    return wrong


@pytest.mark.parametrize("seeds", [range(600), pytest.param(range(600, 10_000), marks=pytest.mark.exhaustive)])
def test_no_interleaving_mixes_steps(seeds: range) -> None:
    """Whichever is slow: the device, the thread that copies out of the ring, or the reader of what was copied."""
    wrong = {seed: found for seed in seeds if (found := mixed_steps(seed))}

    assert wrong == {}
