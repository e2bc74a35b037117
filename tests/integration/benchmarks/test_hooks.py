"""The prefill rank of `benchmarks.quick` is real enough that what it measures is the hand-off."""

from pathlib import Path

import pytest

from benchmarks.harness import HostMemory
from benchmarks.quick import hooks
from benchmarks.quick.hooks import KvShape, PrefillRank, Target
from tests.support.memory_engine import MemoryFabric


def test_the_hooks_are_timed_while_everything_is_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample per layer and step; every prompt has been committed, and its bytes have travelled."""
    requests = 16
    shape = KvShape(layers=2, blocks=256, block_bytes=256)
    monkeypatch.setattr(hooks, "SHAPE", shape)
    monkeypatch.setattr(hooks, "PYTHON_S", 0.0)
    fabric, source, target = MemoryFabric(), HostMemory(shape.total_bytes), HostMemory(shape.total_bytes)
    receiver = fabric.factory("d").receiver([(target.address, target.size)])
    rank = PrefillRank(
        shape=shape,
        address=source.address,
        engines=fabric.factory("p"),
        target=Target(receiver.session, target.address),
        folder=tmp_path,
    )
    case = hooks.Case(requests, rank)

    case.compute_prompts()
    case.compute_prompts()

    assert len(case.hooks_s) == 2 * hooks.STEPS * shape.layers
    totals = rank.worker.snapshot()["totals"]
    assert totals["committed"] == 2 * requests
    assert totals["bytes"] == 2 * hooks.CHUNK_BLOCKS * hooks.STEPS * shape.layers * shape.block_bytes
    rank.worker.stop()
