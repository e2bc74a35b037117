"""The prefill rank of `benchmarks.quick` is real enough that what it measures is the hand-off."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.kv_connector.handoff.metadata import PrefillStep
from benchmarks.harness import HostMemory
from benchmarks.quick import hooks
from benchmarks.quick.rank import KvShape, PlayedTransfer, PrefillRank, Target
from tests.support.memory_engine import MemoryFabric

SHAPE = KvShape(layers=2, blocks=16, block_bytes=4096)


class World:
    """A rank whose engine is in memory, and the memory that it pushes to."""

    def __init__(self, shape: KvShape, folder: Path) -> None:
        self.fabric = MemoryFabric()
        self.source, self.target = HostMemory(shape.total_bytes), HostMemory(shape.total_bytes)
        ctypes.memset(self.target.address, 0, shape.total_bytes)
        receiver = self.fabric.factory("d").receiver([(self.target.address, self.target.size)])
        self.rank = PrefillRank(
            shape=shape,
            address=self.source.address,
            engines=self.fabric.factory("p"),
            target=Target(receiver.session, self.target.address),
            folder=folder,
        )

    def block(self, memory: HostMemory, layer: int, block: int) -> bytes:
        region = SHAPE.regions(memory.address)[layer]
        return ctypes.string_at(region.base_addr + block * region.stride_bytes, region.block_bytes)

    def compute(self, prompt: PlayedTransfer) -> None:
        """Run one step of the whole prompt."""
        worker = self.rank.worker
        worker.begin_step(PrefillStep(started=[prompt.started()], progress=[prompt.progress(0, len(prompt.source))]))
        for name in self.rank.layer_names:
            worker.layer_written(name)
        worker.end_step()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A started rank."""
    made = World(SHAPE, tmp_path)
    yield made
    made.rank.stop()


def test_a_played_prompt_arrives(world: World) -> None:
    """Every block of every layer is where the played decode rank wanted it, and the transfer is committed."""
    prompt = PlayedTransfer("a", [1, 2, 5], [7, 3, 4])

    world.rank.reserve(prompt)
    world.compute(prompt)
    snapshot = world.rank.wait_for_commits(1)

    assert snapshot["totals"]["bytes"] == 3 * SHAPE.layers * SHAPE.block_bytes
    for layer in range(SHAPE.layers):
        for mine, theirs in zip(prompt.source, prompt.destination, strict=True):
            assert world.block(world.target, layer, theirs) == world.block(world.source, layer, mine)


def test_the_hooks_are_timed_while_everything_is_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample per layer and step, and the bytes of every prompt have travelled."""
    requests = 16
    shape = KvShape(layers=2, blocks=256, block_bytes=256)
    monkeypatch.setattr(hooks, "SHAPE", shape)
    monkeypatch.setattr(hooks, "PYTHON_S", 0.0)
    world = World(shape, tmp_path)
    case = hooks.Case(requests, world.rank)

    case.compute_prompts()
    case.compute_prompts()

    assert len(case.hooks_s) == 2 * hooks.STEPS * shape.layers
    totals = world.rank.worker.snapshot()["totals"]
    assert totals["committed"] == 2 * requests
    assert totals["bytes"] == 2 * hooks.CHUNK_BLOCKS * hooks.STEPS * shape.layers * shape.block_bytes
    world.rank.stop()
