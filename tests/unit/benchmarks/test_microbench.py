import random

import pytest

from baton.kv_connector.layout.copy_plan import plan_layers
from benchmarks.microbench.planner import contiguous, in_runs
from benchmarks.microbench.rank import KvShape


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
