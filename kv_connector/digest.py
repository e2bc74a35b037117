"""A digest over the KV of some blocks, to prove that what D holds is what P computed.

Reads host memory through plain addresses, so it works where the KV cache lies in host memory. Whole blocks travel,
hence whole blocks are compared, the unused tail of the last one included.
"""

import ctypes
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from kv_connector.layout import Region


def digest_blocks(regions: Iterable[Region], blocks: Sequence[int]) -> bytes:
    """Return 16 bytes naming the content of `blocks` (scheduler-block ids, in prompt order) in all regions."""
    digest = blake2b(digest_size=16)
    for region in regions:
        for block in blocks:
            address = region.base_addr + block * region.stride_bytes
            digest.update((ctypes.c_char * region.block_bytes).from_address(address))
    return digest.digest()
