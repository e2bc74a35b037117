"""E10: the digests that `kv_verify` computes on a device are those that a CPU computes of the same bytes."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch

from baton.kv_connector.layout.regions import Region
from baton.kv_connector.worker_side.digest import RegionDigests
from tests.gpu.device import Device
from tests.gpu.harness import Expect, Scale

TITLE: Final = "digests on the device equal the CPU's"


class Layout(NamedTuple):
    block_bytes: int
    gap_bytes: int = 0  # behind each block
    offset_bytes: int = 0  # before the first


LAYOUTS: Final = (
    Layout(32 << 10),
    Layout(2 << 20),
    Layout(32 << 10, gap_bytes=4096),
    Layout(1000, gap_bytes=24, offset_bytes=2),
    Layout(514),
    Layout(77, offset_bytes=3),
)
EXPECTED: Final = (
    Expect("layouts that differ", "==", 0, "64-bit integers wrap around alike everywhere"),
    Expect("layouts compared", "==", len(LAYOUTS), "words of 4, 2 and 1 bytes, dense and with gaps"),
    Expect("flipped bits that went unnoticed", "==", 0, "an odd weight has an inverse"),
    Expect("GB/s", ">=", 50, "some ten passes over memory of TB/s, and 0.2 ms of launches", timed=True),
)
BLOCKS: Final = 64  # of a region; in a dry run 8


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Compare layout by layout, then flip a bit on the device."""
    differing = unnoticed = 0
    blocks = scale.of(BLOCKS, 8)
    rates = []
    for layout in LAYOUTS:
        stride = layout.block_bytes + layout.gap_bytes
        size = layout.offset_bytes + 2 * blocks * stride
        generator = torch.Generator().manual_seed(size)
        host = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        there = host.to(device.memory, copy=True)
        ids = torch.randperm(blocks, generator=generator).tolist()[: blocks // 2]
        theirs = RegionDigests([host], _regions(layout, host, blocks))
        ours = RegionDigests([there], _regions(layout, there, blocks))
        expected = theirs(ids, [0, 1])
        ours(ids, [0, 1])  # the first call loads kernels and weights
        began_s = device.now()
        differing += ours(ids, [0, 1]) != expected
        took_s = device.now() - began_s
        rates.append(2 * len(ids) * layout.block_bytes / 1e9 / max(took_s, 1e-9))
        there[layout.offset_bytes + ids[3] * stride + layout.block_bytes // 2] ^= 16
        device.synchronize()
        unnoticed += ours(ids, [0, 1]) == expected
    return {
        "layouts that differ": differing,
        "layouts compared": len(LAYOUTS),
        "flipped bits that went unnoticed": unnoticed,
        "GB/s": round(max(rates), 2),
    }


def _regions(layout: Layout, memory: torch.Tensor, blocks: int) -> list[Region]:
    stride = layout.block_bytes + layout.gap_bytes
    return [
        Region(
            name=f"region {number}",
            layer=number,
            base_addr=memory.data_ptr() + layout.offset_bytes + number * blocks * stride,
            block_bytes=layout.block_bytes,
            stride_bytes=stride,
            num_blocks=blocks,
        )
        for number in range(2)
    ]
