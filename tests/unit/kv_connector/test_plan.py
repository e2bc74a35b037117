"""Plans of copies, checked against one copy per block."""

import random
from collections.abc import Sequence

import pytest

from kv_connector import plan
from kv_connector.errors import BlockOutOfRange, LayoutError
from kv_connector.layout import Region
from kv_connector.plan import Copy, plan_copies, plan_layers

BLOCK_BYTES = 64


def region(base_addr: int, *, stride_bytes: int = BLOCK_BYTES, num_blocks: int = 1_000) -> Region:
    """A region of 64-byte blocks, dense unless a larger stride is given."""
    return Region(
        name=f"r{base_addr}",
        layer=0,
        base_addr=base_addr,
        block_bytes=BLOCK_BYTES,
        stride_bytes=stride_bytes,
        num_blocks=num_blocks,
    )


def bytes_moved(copies: Sequence[Copy]) -> list[tuple[int, int]]:
    """Each byte's way, sorted: `(source, destination)`."""
    return sorted((c.src + i, c.dst + i) for c in copies for i in range(c.length))


@pytest.fixture(params=["few", "many"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with the code for short block tables and with that for long ones."""
    monkeypatch.setattr(plan, "_FEW", 1 << 30 if request.param == "few" else 0)
    return str(request.param)


@pytest.mark.usefixtures("size")
def test_neighbouring_blocks_travel_as_one_copy() -> None:
    """A run that is contiguous on both sides needs one descriptor, not three."""
    copies = plan_copies(region(1_000), region(5_000), [2, 3, 4], [7, 8, 9])

    assert copies == [Copy(1_000 + 2 * 64, 5_000 + 7 * 64, 3 * 64)]


@pytest.mark.usefixtures("size")
def test_a_run_ends_where_either_side_jumps() -> None:
    """Contiguity on one side alone is not enough, and a descending run is none."""
    copies = plan_copies(region(0), region(1 << 20), [1, 2, 3, 4, 9, 8], [1, 2, 5, 6, 7, 6])

    assert [copy.length // 64 for copy in copies] == [2, 2, 1, 1]


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(("src_stride", "dst_stride"), [(128, 64), (64, 128), (128, 96)])
def test_blocks_with_gaps_between_them_are_never_joined(src_stride: int, dst_stride: int) -> None:
    """Where blocks of other layers lie between two blocks, joining the copies would write over them."""
    src, dst = region(0, stride_bytes=src_stride), region(1 << 20, stride_bytes=dst_stride)

    copies = plan_copies(src, dst, [1, 2], [3, 4])

    assert copies == [Copy(i * src_stride, (1 << 20) + (i + 2) * dst_stride, 64) for i in (1, 2)]


@pytest.mark.usefixtures("size")
def test_random_plans_move_the_same_bytes_as_one_copy_per_block() -> None:
    """Over random block tables and several regions, coalescing changes the number of copies only."""
    rng = random.Random(3)
    for _ in range(80):
        count = rng.randint(1, 12)
        start = rng.randint(0, 5)
        src = [start + i + rng.choice([0, 0, 0, 20]) for i in range(count)]
        dst = rng.sample(range(15), count) if rng.random() < 0.3 else list(range(count))
        pairs = [
            (
                region(base, stride_bytes=rng.choice([64, 80])),
                region(base + (1 << 30), stride_bytes=rng.choice([64, 80])),
            )
            for base in (0, 1 << 22)
        ]
        naive = [
            Copy(s.base_addr + i * s.stride_bytes, d.base_addr + j * d.stride_bytes, 64)
            for s, d in pairs
            for i, j in zip(src, dst, strict=True)
        ]

        copies = plan_layers(pairs, src, dst)

        assert bytes_moved(copies) == bytes_moved(naive)
        assert len(copies) <= len(naive)
        assert all(type(copy) is Copy and all(type(value) is int for value in copy) for copy in copies)


@pytest.mark.usefixtures("size")
def test_the_runs_of_one_block_table_serve_every_layer() -> None:
    """Each pair of regions gets its copies, in the order of the pairs."""
    pairs = [(region(0), region(1 << 20)), (region(1 << 16), region(1 << 24))]

    assert plan_layers(pairs, [1, 2], [5, 6]) == [
        Copy(64, (1 << 20) + 320, 128),
        Copy((1 << 16) + 64, (1 << 24) + 320, 128),
    ]


def test_nothing_to_copy_is_no_copy() -> None:
    """Empty block tables and empty lists of regions are fine."""
    assert plan_layers([(region(0), region(0))], [], []) == []
    assert plan_layers([], [1], [1]) == []


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(
    ("src", "dst", "bad"),
    [([0, -1], [0, 1], "-1"), ([10], [0], "10"), ([0], [10], "10"), ([0], [-3], "-3")],
)
def test_ids_outside_their_region_are_refused(src: list[int], dst: list[int], bad: str) -> None:
    """A block id that the region does not have would name somebody else's memory."""
    with pytest.raises(BlockOutOfRange, match=f"block {bad} is not in"):
        plan_copies(region(0, num_blocks=10), region(1 << 20, num_blocks=10), src, dst)


def test_block_tables_of_different_lengths_are_refused() -> None:
    """Every source block needs its destination."""
    with pytest.raises(LayoutError, match="2 source blocks cannot fill 1"):
        plan_copies(region(0), region(1 << 20), [1, 2], [1])


def test_regions_with_blocks_of_different_sizes_are_refused() -> None:
    """Both sizes are named."""
    other = Region(name="other", layer=0, base_addr=0, block_bytes=32, stride_bytes=64, num_blocks=10)
    with pytest.raises(LayoutError, match="64 B in r0 here and 32 B in other there"):
        plan_copies(region(0), other, [1], [1])


def test_a_long_block_table_in_order_is_one_copy() -> None:
    """100,000 pairs of blocks that follow each other on both sides need one descriptor."""
    ids = list(range(100_000))
    src, dst = region(0, num_blocks=100_000), region(1 << 40, num_blocks=100_000)

    assert len(plan_copies(src, dst, ids, ids)) == 1
