"""vLLM's own bookkeeping of a step, on a late device: with its way of fetching tokens, and with ours."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from baton.model_runner.cuda import CudaRunner
from baton.model_runner.runner.event_synced import ListsEventSynced
from baton.model_runner.runner.piggybacked_copies import PiggybackedCopies
from baton.model_runner.tokens.packing import most_bytes
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.support.fake_device import FakeDevice, Run
from tests.support.fake_lane import FakeLane
from tests.support.late_tensor import LateWorld
from tests.unit.model_runner.runner.steps import bare_runner, book, top_logprobs

PLACEHOLDER = -1
TOKENS = {"plain": [[7], [8]], "drafts": [[7, 9, PLACEHOLDER], [8, PLACEHOLDER, PLACEHOLDER]]}
ACCEPTED = {"plain": [[7], [8]], "drafts": [[7, 9], [8]]}


class Lists(ListsEventSynced, GPUModelRunner):
    """Likewise, as on an NPU."""


class Step(NamedTuple):
    tokens: list[list[int]]
    logprobs: list[list[float]] | None
    blocked: dict[str, int]  # by line
    waits_for_model_stream: int


def runner_of(kind: type[GPUModelRunner], world: LateWorld, transfer: TokenTransfer) -> Any:
    made = bare_runner(kind, world)
    made.token_transfer = transfer
    made.companions = PiggybackedCopies(transfer)
    return made


@pytest.fixture
def world() -> Iterator[LateWorld]:
    """A device on which nothing runs but what a thread waits for."""
    device = FakeDevice(1, Run.ON_WAIT)
    yield LateWorld(device)
    device.close()


def run_step(kind: type[GPUModelRunner], world: LateWorld, tokens: str, *, logprobs: bool) -> Step:
    """Let a runner book a step of two requests."""
    transfer = TokenTransfer(FakeLane(world.device, world.compute), most_bytes(max_num_seqs=4))
    transfer.start()
    runner = runner_of(kind, world, transfer)
    ids = torch.tensor(TOKENS[tokens], dtype=torch.int32)
    tops = top_logprobs(world, ids.numel()) if logprobs else None
    with world.audit.watching():
        booked = book(runner, world.sampled(ids), tops)
    transfer.stop()
    lists = booked[2]
    return Step(booked[3], lists and lists.logprobs.tolist(), world.audit.snapshot(), world.event_waits)


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("tokens", sorted(TOKENS))
def test_ours_books_what_the_engine_books_without_blocking(world: LateWorld, tokens: str, logprobs: bool) -> None:
    """The same tokens and logprobs, and no line of vLLM's blocks the host."""
    theirs = run_step(GPUModelRunner, world, tokens, logprobs=logprobs)
    quiet = LateWorld(FakeDevice(1, Run.ON_WAIT))

    ours = run_step(CudaRunner, quiet, tokens, logprobs=logprobs)

    assert ours.tokens == theirs.tokens == ACCEPTED[tokens]
    assert ours.logprobs == theirs.logprobs
    assert ours.blocked == {}
    assert ours.waits_for_model_stream == 0
    quiet.device.close()


@pytest.mark.parametrize(
    ("tokens", "logprobs", "blocked", "event_waits"),
    [("plain", False, 0, 1), ("plain", True, 3, 1), ("drafts", False, 1, 0), ("drafts", True, 7, 0)],
)
def test_how_often_the_engine_blocks(
    world: LateWorld, tokens: str, logprobs: bool, blocked: int, event_waits: int
) -> None:
    """What docs/runner.md says of the installed vLLM. When this fails for a smaller number, ours may have become needless."""
    found = run_step(GPUModelRunner, world, tokens, logprobs=logprobs)

    assert sum(found.blocked.values()) == blocked
    assert all(site.startswith("vllm/v1/") for site in found.blocked)
    assert found.waits_for_model_stream == event_waits


def test_routed_experts_are_left_to_the_engine(world: LateWorld) -> None:
    """Up to vLLM 0.30 its bookkeeping issues their copy, and its own wait for the tokens covers it."""
    transfer = TokenTransfer(FakeLane(world.device, world.compute), most_bytes(max_num_seqs=4))
    runner = runner_of(CudaRunner, world, transfer)
    runner.routed_experts_initialized = True

    assert book(runner, world.sampled(torch.tensor([[7], [8]])))[3] == [[7], [8]]
    assert (world.event_waits, transfer.counts.submitted) == (1, 0)


def test_lists_alone_can_come_by_our_copy(world: LateWorld) -> None:
    """As on an NPU, where the wait for them must come last."""
    transfer = TokenTransfer(FakeLane(world.device, world.compute), most_bytes(max_num_seqs=4))
    transfer.start()
    runner: Any = object.__new__(Lists)
    runner.token_transfer = transfer

    with world.audit.watching():
        assert runner._to_list(world.sampled(torch.tensor([[7], [8]], dtype=torch.int32))) == [[7], [8]]

    assert world.audit.snapshot() == {}
    transfer.stop()
