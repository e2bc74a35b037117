import random

import pytest

from baton.kv_connector.layout.copy_plan import plan_layers
from benchmarks.microbench.planner import contiguous, in_runs
from benchmarks.microbench.rank import KvShape, PlayedTransfer


@pytest.mark.parametrize("run", [1, 8])
def test_block_tables_have_the_runs_that_their_name_says(run: int) -> None:
    """No run joins another by chance, and no block is named twice."""
    shape = KvShape(layers=1, blocks=16 * run, block_bytes=64)
    regions = list(zip(shape.regions(0), shape.regions(1 << 30), strict=True))
    for seed in range(50):
        tables = in_runs(8 * run, run, random.Random(seed))

        assert len(plan_layers(regions, *tables)) == 8
        assert [len(set(table)) for table in tables] == [8 * run] * 2
    assert len(plan_layers(regions, *contiguous(8))) == 1


def test_the_layers_of_a_cache_touch_and_do_not_overlap() -> None:
    """Together they are the memory that is registered."""
    shape = KvShape(layers=3, blocks=4, block_bytes=8)
    regions = shape.regions(100)

    assert [(region.base_addr, region.end_addr) for region in regions] == [(100, 132), (132, 164), (164, 196)]
    assert shape.total_bytes == 96


def test_a_played_transfer_speaks_as_the_scheduler_does() -> None:
    """New blocks of a step, and how many of the prompt are complete after it."""
    transfer = PlayedTransfer("a", range(10, 14), range(20, 24))

    assert transfer.prompt.blocks == 4
    assert transfer.progress(1, 3) == ("a", [[11, 12]], 3)
