import random

from baton.kv_connector.layout.copy_plan import plan_layers
from benchmarks.quick.connector import scattered
from benchmarks.quick.rank import KvShape


def test_scattered_blocks_never_make_one_copy() -> None:
    """No block joins another by chance, and no block is named twice."""
    shape = KvShape(layers=1, blocks=16, block_bytes=64)
    regions = list(zip(shape.regions(0), shape.regions(1 << 30), strict=True))
    for seed in range(50):
        tables = scattered(8, random.Random(seed))

        assert len(plan_layers(regions, *tables)) == 8
        assert [len(set(table)) for table in tables] == [8, 8]
