"""Digests of KV blocks: against plain integers, and against every change that they promise to see."""

import random
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.protocol.verification import DIGEST_BYTES
from baton.kv_connector.worker_side import digest
from baton.kv_connector.worker_side.digest import RegionDigests, own_stream

LIMIT = 1 << 64


def regions_over(
    memory: torch.Tensor, *, block_bytes: int, stride_bytes: int = 0, count: int = 1, first: int = 0
) -> list[Region]:
    """Regions of three blocks, one after the other, `first` bytes into a tensor."""
    stride = stride_bytes or block_bytes
    return [
        Region(
            name=f"layer.{i}",
            layer=i,
            base_addr=memory.data_ptr() + first + i * 3 * stride,
            block_bytes=block_bytes,
            stride_bytes=stride,
            num_blocks=3,
        )
        for i in range(count)
    ]


def noise(size: int, seed: int = 0) -> torch.Tensor:
    return torch.tensor(list(random.Random(seed).randbytes(size)), dtype=torch.uint8)


def digests_of(memory: torch.Tensor, blocks: list[int], **layout: int) -> list[bytes]:
    packed = RegionDigests([memory], (regions := regions_over(memory, **layout)))(blocks, range(len(regions)))
    return [packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES)]


def mix(number: int) -> int:
    """The finaliser of splitmix64, as its author writes it."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) % LIMIT
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) % LIMIT
    return number ^ (number >> 31)


def by_hand(memory: torch.Tensor, blocks: list[int], block_bytes: int, word_bytes: int) -> bytes:
    """The formula at the head of `digest.py`, in Python's own integers."""
    data = bytes(memory.tolist())
    total = 0
    for position, block in enumerate(blocks):
        payload = data[block * block_bytes : (block + 1) * block_bytes]
        words = [
            int.from_bytes(payload[at : at + word_bytes], "little", signed=True)
            for at in range(0, block_bytes, word_bytes)
        ]
        weights = [mix((j + 1) * 0x9E3779B97F4A7C15 % LIMIT) | 1 for j in range(len(words))]
        weighed = sum(weight * word for weight, word in zip(weights, words, strict=True))
        total += mix((weighed + mix((position + 1) * 0x9E3779B97F4A7C15 % LIMIT)) % LIMIT)
    return (total % LIMIT).to_bytes(8, "little")


@pytest.mark.parametrize(("block_bytes", "word_bytes"), [(64, 4), (48, 4), (30, 2), (7, 1), (4 * 40_000, 4)])
def test_the_digest_is_the_one_of_the_formula(block_bytes: int, word_bytes: int) -> None:
    """Whatever computes it, a peer with another device, version or size of temporary memory gets the same."""
    memory = noise(3 * block_bytes)

    assert digests_of(memory, [2, 0], block_bytes=block_bytes) == [by_hand(memory, [2, 0], block_bytes, word_bytes)]


def test_a_flipped_bit_changes_its_region_and_no_other() -> None:
    """In every byte of two blocks in two regions, one after the other."""
    memory = noise(2 * 3 * 32)
    before = digests_of(memory, [1, 2], block_bytes=32, count=2)

    for region in range(2):
        for at in range(region * 96 + 32, region * 96 + 96):
            bit = 1 << at * 5 % 8
            memory[at] ^= bit
            after = digests_of(memory, [1, 2], block_bytes=32, count=2)
            memory[at] ^= bit
            assert [a != b for a, b in zip(after, before, strict=True)] == [region == 0, region == 1], at


@pytest.mark.parametrize(("left", "right"), [(3, 7), (3, 11), (3, 3 + 64), (3 + 32, 11 + 64)])
def test_two_flipped_signs_do_not_cancel_out(left: int, right: int) -> None:
    """The highest bit of a word has one weight for all mod 2^32: 64-bit sums keep what tells the words apart."""
    memory = noise(96)
    before = digests_of(memory, [0, 1, 2], block_bytes=32)

    memory[left] ^= 0x80
    memory[right] ^= 0x80

    assert digests_of(memory, [0, 1, 2], block_bytes=32) != before


def test_blocks_in_another_order_are_other_blocks() -> None:
    """A transfer whose blocks changed places holds another prompt."""
    memory = noise(96)

    assert len({digests_of(memory, order, block_bytes=32)[0] for order in ([0, 1, 2], [1, 0, 2], [0, 2, 1])}) == 3


def test_both_nodes_agree_whatever_their_layout() -> None:
    """Other block ids, gaps between blocks, an odd address: the same content has the same digest."""
    source, target = noise(3 * 32), torch.zeros(5 + 3 * 41, dtype=torch.uint8)
    for mine, theirs in ((2, 0), (0, 1)):
        target[5 + mine * 41 : 5 + mine * 41 + 32] = source[theirs * 32 : theirs * 32 + 32]

    sent = digests_of(source, [0, 1], block_bytes=32)

    assert digests_of(target, [2, 0], block_bytes=32, stride_bytes=41, first=5) == sent


def test_a_small_temporary_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces in which blocks are weighed are no part of the digest."""
    memory = noise(96)
    whole = digests_of(memory, [0, 1, 2], block_bytes=32)

    for words in (1, 3, 8, 20, 23):
        monkeypatch.setattr(digest, "_HOST_WORDS", words)
        assert digests_of(memory, [0, 1, 2], block_bytes=32) == whole


def test_a_region_outside_the_tensors_is_refused() -> None:
    """It cannot be read, so the worker must not start as if it could."""
    memory = noise(96)
    (region,) = regions_over(memory, block_bytes=32)

    with pytest.raises(LayoutError, match=r"layer\.0"):
        RegionDigests([noise(16)], [region])
    with pytest.raises(LayoutError, match=r"layer\.0"):
        RegionDigests([memory], regions_over(memory, block_bytes=32, first=1))


def test_an_accelerator_gets_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's stream is not held up, and the stream is made once."""
    seen: list[Any] = []

    @contextmanager
    def stream(one: object) -> Any:
        seen.append(("on", one))
        yield
        seen.append("off")

    def make(device: object) -> str:
        seen.append(("made", device))
        return "a stream"

    module = SimpleNamespace(Stream=make, stream=stream)
    device: Any = SimpleNamespace(type="npu")
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)

    on_stream = own_stream(device)
    for _ in range(2):
        with on_stream():
            pass

    assert seen == [("made", device), *[("on", "a stream"), "off"] * 2]
