"""A KV cache as plain memory: one region per layer, block after block."""

from baton.kv_connector.layout.regions import Region
from baton.kv_connector.worker_side.caches import Caches


def plain_caches(base: int, layers: int, blocks: int, block_bytes: int, block_tokens: int) -> Caches:
    """Describe `[layers, blocks, block_bytes]` bytes at address `base`."""
    return Caches(
        layer_of={f"layer.{i}": i for i in range(layers)},
        regions=tuple(
            Region(
                name=f"layer.{i}",
                layer=i,
                base_addr=base + i * blocks * block_bytes,
                block_bytes=block_bytes,
                stride_bytes=block_bytes,
                num_blocks=blocks,
            )
            for i in range(layers)
        ),
        num_blocks=blocks,
        block_tokens=block_tokens,
    )
