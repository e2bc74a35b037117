"""Who, besides vLLM's requests, holds blocks of the pool.

The connector holds a reference of its own on every block that a peer may write to, from allocation until the epoch is
closed. So whatever vLLM does with the request until then, the blocks cannot come back to the pool too early (I3).
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


class ReservationLedger:
    """Blocks that peers may write to, by request. Each of our ranks has memory of its own behind a block's id."""

    def __init__(self, ranks: int = 1) -> None:
        self._ranks = ranks
        self._pool: BlockPool | None = None
        self._held: dict[str, list[KVCacheBlock]] = {}
        self._released: Counter[str] = Counter()  # request → ranks that no write can come to any more

    def __len__(self) -> int:
        return len(self._held)

    def bind(self, pool: "BlockPool") -> None:
        self._pool = pool

    @property
    def pool(self) -> "BlockPool":
        assert self._pool is not None  # bound before the first request
        return self._pool

    def take(self, request_id: str, blocks: Sequence["KVCacheBlock"]) -> None:
        """Hold a reference on `blocks`, which `request_id` has just been given."""
        assert request_id not in self._held  # one reservation per request
        self._held[request_id] = list(blocks)
        self.pool.touch(blocks)

    def release(self, request_id: str) -> list[int]:
        """One rank says that no write can come any more: with the last of them the reference is dropped.

        Returns the block ids then; none before, and none for a request that has no reservation.
        """
        self._released[request_id] += 1
        if self._released[request_id] < self._ranks:
            return []
        del self._released[request_id]
        blocks = self._held.pop(request_id, [])
        self.pool.free_blocks(reversed(blocks))  # tail first, as vLLM does: the head is worth more in its cache
        return [block.block_id for block in blocks]

    def reservations(self) -> dict[str, list[int]]:
        """Request → block ids, for the integrity check; from any thread."""
        return {request_id: [block.block_id for block in blocks] for request_id, blocks in list(self._held.items())}

    def blocks_held(self, request_id: str) -> int:
        return len(self._held.get(request_id, ()))

    def total_blocks(self) -> int:
        return sum(map(len, list(self._held.values())))


def by_place(blocks: Sequence["KVCacheBlock"], places: int) -> list[int]:
    """Return a block id for each place; 0 where vLLM has no block, since it will not be read or it is D's to fill."""
    ids = [0 if block.is_null else block.block_id for block in blocks]
    return ids + [0] * (places - len(ids))
