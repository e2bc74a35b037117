"""Plans of copies, checked against one copy per block."""

import random
from collections.abc import Iterable

import pytest

from baton.kv_connector.errors import BlockOutOfRange, LayoutError
from baton.kv_connector.layout import copy_plan
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan, plan_layers, plan_units
from baton.kv_connector.layout.pairing import ByteRange, RegionPair
from baton.kv_connector.layout.regions import Region

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


def plan_copies(src: Region, dst: Region, src_blocks: list[int], dst_blocks: list[int]) -> CopyPlan:
    return plan_layers([(src, dst)], src_blocks, dst_blocks)


def bytes_moved(copies: Iterable[Copy]) -> list[tuple[int, int]]:
    """Each byte's way, sorted: `(source, destination)`."""
    return sorted((c.src + i, c.dst + i) for c in copies for i in range(c.length))


@pytest.fixture(params=["few", "many"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with the code for short block tables and with that for long ones."""
    monkeypatch.setattr(copy_plan, "_FEW", 1 << 30 if request.param == "few" else 0)
    return str(request.param)


def test_units_that_have_no_block_are_no_copy() -> None:
    """A block of several places is at the last of them."""
    pair = RegionPair(src=region(0), dst=region(1 << 20), heads=1, strips=((ByteRange(0, 0, 32),),))

    assert list(plan_units([pair], [], [], [])) == []


@pytest.mark.usefixtures("size")
def test_a_run_ends_where_either_side_jumps() -> None:
    """Contiguity on one side alone is not enough."""
    copies = plan_copies(region(0), region(1 << 20), [1, 2, 3, 4, 8, 9], [1, 2, 5, 6, 7, 6])

    assert [copy.length // 64 for copy in copies] == [2, 2, 1, 1]


@pytest.mark.usefixtures("size")
def test_a_falling_run_is_one_copy() -> None:
    """A request is freed from its end by vLLM, so blocks used again come in falling order, or in pieces of such runs."""
    copies = plan_copies(region(0), region(1 << 20), [5, 4, 3, 9, 8, 6, 7], [15, 14, 13, 29, 28, 16, 17])

    assert list(copies) == [Copy(3 * 64, (1 << 20) + 13 * 64, 5 * 64), Copy(8 * 64, (1 << 20) + 28 * 64, 2 * 64)]


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(("src_stride", "dst_stride"), [(128, 64), (64, 128), (128, 96)])
def test_blocks_with_gaps_between_them_are_never_joined(src_stride: int, dst_stride: int) -> None:
    """Where blocks of other layers lie between two blocks, joining the copies would write over them."""
    src, dst = region(0, stride_bytes=src_stride), region(1 << 20, stride_bytes=dst_stride)

    copies = plan_copies(src, dst, [1, 2], [3, 4])

    assert list(copies) == [Copy(i * src_stride, (1 << 20) + (i + 2) * dst_stride, 64) for i in (1, 2)]


@pytest.mark.usefixtures("size")
def test_random_plans_move_the_same_bytes_as_one_copy_per_block() -> None:
    """Over random block tables and several regions, coalescing changes the number of copies only."""
    rng = random.Random(3)
    for _ in range(80):
        count = rng.randint(1, 12)
        start = rng.randint(0, 5)
        src = [start + i + rng.choice([0, 0, 0, 20]) for i in range(count)]
        dst = rng.sample(range(15), count) if rng.random() < 0.3 else list(range(count))
        strides = iter(rng.choices([64, 80], k=4))
        pairs = [
            (region(base, stride_bytes=next(strides)), region(base + (1 << 30), stride_bytes=next(strides)))
            for base in (0, 1 << 22)
        ]
        naive = [
            Copy(s.base_addr + i * s.stride_bytes, d.base_addr + j * d.stride_bytes, 64)
            for s, d in pairs
            for i, j in zip(src, dst, strict=True)
        ]

        copies = plan_layers(pairs, src, dst)

        assert bytes_moved(copies) == bytes_moved(naive)
        assert len(copies) == len(list(copies)) <= len(naive)
        assert copies.total_bytes == sum(copy.length for copy in copies)
        assert all(type(copy) is Copy and all(type(value) is int for value in copy) for copy in copies)


def test_nothing_to_copy_is_no_copy() -> None:
    """Empty block tables and empty lists of regions are fine."""
    for plan_of_nothing in (plan_layers([(region(0), region(0))], [], []), plan_layers([], [1], [1])):
        assert (list(plan_of_nothing), len(plan_of_nothing), plan_of_nothing.total_bytes) == ([], 0, 0)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(
    ("src", "dst", "bad"),
    [([0, -1], [0, 1], "-1"), ([0, 10], [0, 1], "10"), ([0], [10], "10"), ([0], [-3], "-3")],
)
def test_ids_outside_their_region_are_refused(src: list[int], dst: list[int], bad: str) -> None:
    """A block id that the region does not have would name memory outside it."""
    with pytest.raises(BlockOutOfRange, match=f"block {bad} is not in"):
        plan_copies(region(0, num_blocks=10), region(1 << 20, num_blocks=10), src, dst)


def test_what_does_not_match_is_refused() -> None:
    """Every source block needs its destination, and blocks have the same size on both sides."""
    with pytest.raises(LayoutError, match="2 source blocks cannot fill 1"):
        plan_copies(region(0), region(1 << 20), [1, 2], [1])
    other = Region(name="other", layer=0, base_addr=0, block_bytes=32, stride_bytes=64, num_blocks=10)
    with pytest.raises(LayoutError, match="64 B in r0 here and 32 B in other there"):
        plan_copies(region(0), other, [1], [1])


def test_a_long_scattered_block_table_is_one_copy_per_block() -> None:
    """None is lost or joined by mistake where no two blocks follow each other."""
    src, dst = list(range(0, 10_000, 2)), list(range(9_998, -2, -2))

    copies = plan_copies(region(0, num_blocks=10_000), region(1 << 30, num_blocks=10_000), src, dst)

    assert len(copies) == 5_000
    assert list(copies) == [Copy(i * 64, (1 << 30) + j * 64, 64) for i, j in zip(src, dst, strict=True)]


@pytest.mark.usefixtures("size")
def test_plans_are_joined_in_their_order() -> None:
    """Layers that have different blocks ready travel in one push; a plan may be made of single copies, too."""
    one = plan_copies(region(0), region(1 << 20), [1, 4], [5, 5])
    other = CopyPlan.of(iter([Copy(1, 2, 3), Copy(4, 5, 6)]))

    both = CopyPlan.joined([one, other])

    assert list(both) == list(both) == [*one, Copy(1, 2, 3), Copy(4, 5, 6)]
    assert (len(both), both.total_bytes) == (4, 137)
