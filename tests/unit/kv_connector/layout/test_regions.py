"""Addresses of KV blocks, checked against real tensors and a naive oracle."""

import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace

from baton.contracts.node_info import RegionInfo
from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.regions import (
    Division,
    Region,
    Sections,
    regions_of_tensor,
    storage_spans,
    unique_regions,
)

PLAIN = Region(name="layer.0", layer=0, base_addr=4096, block_bytes=64, stride_bytes=64, num_blocks=10)


def region(**changes: Any) -> Region:
    return replace(PLAIN, **changes)


def regions_of(tensor: torch.Tensor, num_blocks: int, division: Division | None = None) -> tuple[Region, ...]:
    return regions_of_tensor(
        name="l",
        layer=3,
        base_addr=tensor.data_ptr(),
        shape=tensor.shape,
        strides=tensor.stride(),
        itemsize=tensor.element_size(),
        num_blocks=num_blocks,
        division=division,
    )


def addresses_of(block: torch.Tensor) -> set[int]:
    """The address of every byte of a view, one element at a time."""
    size = block.element_size()
    offsets = torch.zeros(block.shape, dtype=torch.int64)
    for dim, stride in enumerate(block.stride()):
        steps = torch.arange(block.shape[dim]) * stride
        offsets += steps.view([-1 if i == dim else 1 for i in range(block.dim())])
    return {block.data_ptr() + int(o) * size + b for o in offsets.flatten() for b in range(size)}


@pytest.mark.parametrize(
    "changes",
    [
        {"base_addr": -1},
        {"layer": -1},
        {"total_heads": -1},
        {"group": -1},
        {"block_bytes": 0},
        {"num_blocks": 0},
        {"kernel_blocks": 0},
        {"heads": 0},
        {"places": 0},
        {"stride_bytes": 63},
        {"base_addr": (1 << 63) - 100},
        {"state_parts": ((1, 1 << 63),)},
        {"state_parts": ((1 << 63, 1),)},
    ],
)
def test_impossible_regions_are_refused(changes: dict[str, Any]) -> None:
    """A region that could not lie in memory raises, so a peer's nonsense never becomes an address."""
    with pytest.raises(LayoutError):
        region(**changes)


def test_a_region_survives_its_announcement() -> None:
    """What a peer reads from our announcement is what we have."""
    made = region(stride_bytes=128, base_addr=(1 << 63) - 9 * 128 - 64)  # to the last address that there is
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=RegionInfo)

    assert Region.from_info(heard) == made


def test_a_block_may_be_a_single_number() -> None:
    assert [each.block_bytes for each in regions_of(torch.empty(2, 5), 5)] == [4, 4]


def test_k_and_v_apart() -> None:
    """FlashAttention's `[2, blocks, …]` tensor is two regions, K before V."""
    tensor = torch.empty(2, 7, 16, 4, 32, dtype=torch.float16)

    keys, values = regions_of(tensor, 7)

    assert (keys.name, values.name) == ("l.0", "l.1")
    assert keys.base_addr == tensor[0].data_ptr()
    assert values.base_addr == tensor[1].data_ptr()
    assert keys.block_bytes == 16 * 4 * 32 * 2


STORAGE = torch.empty(6, 3, 10)  # the layers of a block lie next to each other


@pytest.mark.parametrize(
    ("tensor", "num_blocks", "block_bytes", "stride_bytes"),
    [
        (torch.empty(5, 4, 128, 64, dtype=torch.bfloat16), 5, 65536, 65536),
        (torch.empty(12, 16, 8), 4, 3 * 16 * 8 * 4, 3 * 16 * 8 * 4),
        (STORAGE[:, 1], 6, 40, 120),
        (torch.empty(1, 16, 8), 1, 16 * 8 * 4, 16 * 8 * 4),
    ],
    ids=["packed, as on CPUs", "kernel blocks side by side", "one of several layers", "one block"],
)
def test_blocks_are_those_of_the_scheduler(
    tensor: torch.Tensor, num_blocks: int, block_bytes: int, stride_bytes: int
) -> None:
    """However the kernel divides them; the stride is larger where other layers lie between."""
    (found,) = regions_of(tensor, num_blocks)

    assert (found.name, found.layer, found.base_addr) == ("l", 3, tensor.data_ptr())
    assert (found.num_blocks, found.block_bytes, found.stride_bytes) == (num_blocks, block_bytes, stride_bytes)
    assert found.is_dense is (block_bytes == stride_bytes)


@pytest.mark.parametrize(
    ("tensor", "num_blocks", "message"),
    [
        (torch.empty(()), 4, "none"),
        (torch.empty(2), 4, "none"),
        (torch.empty(5, 3), 4, "none"),
        (torch.empty(0, 3), 4, "none"),
        (torch.empty(8, 3), 0, "none"),
        (torch.empty(2, 4, 3), 2, "the first or the second"),
        (torch.empty(8, 2, 16, 8)[:, 0], 4, "side by side"),
        (torch.empty(4, 6, 8)[:, :, :5], 4, "gaps"),
    ],
)
def test_tensors_that_are_not_understood_are_refused(tensor: torch.Tensor, num_blocks: int, message: str) -> None:
    """No dimension, or either of two, counts the blocks; or a block's bytes are not one run for one copy."""
    with pytest.raises(LayoutError, match=message):
        regions_of(tensor, num_blocks)


@pytest.mark.parametrize(
    ("tensor", "sections", "expected"),
    [
        (torch.empty(6, 2, 4, 8), None, (2, 2, 4, ((1, 32),))),
        (torch.empty(6, 4, 2, 8).transpose(1, 2), None, (2, 1, 0, ((1, 64),))),
        (torch.empty(6, 4, 1, 8).transpose(1, 2), None, (2, 1, 4, ((1, 32),))),
        (torch.empty(6, 1, 2, 8).transpose(1, 2), None, (2, 2, 4, ((1, 32),))),
        (torch.empty(6, 2, 8, 4).transpose(2, 3), None, (2, 2, 4, ())),
        (torch.empty(6, 2, 4, 8), ((4, 4), (1, 16)), (2, 2, 4, ((4, 4), (1, 16)))),
        (torch.empty(6, 2, 4, 8), ((4, 4), (1, 15)), (2, 2, 4, ())),
        (torch.empty(6, 4, 8), None, (1, 1, 0, ())),
    ],
    ids=[
        "heads first",
        "tokens first",
        "tokens first, of one head",
        "tokens first, one of them",
        "tokens last",
        "packed by the kernel",
        "packed in more or less than a token has",
        "no heads",
    ],
)
def test_a_block_is_divided_as_its_strides_allow(
    tensor: torch.Tensor, sections: Sections | None, expected: tuple[int, int, int, Sections]
) -> None:
    """Among ranks where each head's tokens lie together, among blocks of other sizes where the order of tokens is known."""
    (found,) = regions_of(tensor, 3, Division(4, sections))

    assert (found.kernel_blocks, found.heads, found.total_heads, found.sections) == expected


def test_any_order_of_dimensions_against_an_oracle() -> None:
    """For random permuted tensors, a block's region holds exactly the bytes of its elements."""
    rng = random.Random(1)
    for _ in range(60):
        inner = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
        blocks, per_block = rng.randint(3, 5), rng.choice([1, 1, 2])
        order = rng.sample(range(1, len(inner) + 1), len(inner))
        stored = torch.empty([blocks * per_block, *(inner[i - 1] for i in order)], dtype=torch.int16)
        tensor = stored.permute([0, *(order.index(i + 1) + 1 for i in range(len(inner)))])

        (found,) = regions_of(tensor, blocks)

        for i in range(blocks):
            start = found.base_addr + i * found.stride_bytes
            expected = addresses_of(tensor[i * per_block : (i + 1) * per_block])
            assert set(range(start, start + found.block_bytes)) == expected


def test_aliases_are_kept_once() -> None:
    """Layers that share KV are one region, the first of them; blocks that differ in size are not the same KV."""
    first, alias, other = region(name="a"), region(name="b", layer=1), region(name="c", base_addr=9000)

    assert unique_regions([first, alias, other]) == (first, other)
    with pytest.raises(LayoutError, match="share memory"):
        unique_regions([region(stride_bytes=128), region(stride_bytes=128, block_bytes=128)])


def test_spans_cover_every_region_and_nothing_else() -> None:
    """Regions that touch or interleave share a span, others do not, and no byte outside is registered."""
    rng = random.Random(2)
    for _ in range(100):
        regions = [
            region(
                base_addr=rng.randint(0, 300),
                block_bytes=rng.randint(1, 9),
                stride_bytes=9,
                num_blocks=rng.randint(1, 5),
            )
            for _ in range(rng.randint(0, 6))
        ]
        covered = {byte for r in regions for byte in range(r.base_addr, r.end_addr)}

        spans = storage_spans(regions)

        assert {byte for start, length in spans for byte in range(start, start + length)} == covered
        assert all(start + length < later for (start, length), (later, _) in pairwise(spans))
