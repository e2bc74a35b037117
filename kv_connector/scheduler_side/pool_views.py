"""Reads vLLM's block pool and scheduler for the integrity check. Looks only; every name of vLLM's in it is here.

vLLM names the pool in every supported version, its cache manager (and with it who owns which block) only in newer ones.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from baton.kv_connector.scheduler_side.integrity import Views

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


class PoolViews:
    """What vLLM knows of its blocks."""

    def __init__(self, pool: "BlockPool", cache_manager: Any) -> None:
        """`cache_manager` is vLLM's `KVCacheManager`, or `None` where it does not hand it out."""
        self._pool = pool
        coordinator = getattr(cache_manager, "coordinator", None)
        managers = getattr(coordinator, "single_type_managers", None) or ()
        self._tables: list[Mapping[str, Sequence[Any]]] = [
            manager.req_to_blocks for manager in managers if hasattr(manager, "req_to_blocks")
        ]

    @property
    def knows_owners(self) -> bool:
        """Whether the scheduler can be asked which requests own which blocks."""
        return bool(self._tables)

    def owns_nothing(self) -> bool:
        """Whether no request owns a block, as far as the scheduler can be asked."""
        return not any(self._tables)

    def all_free(self) -> bool:
        return bool(self._pool.get_num_free_blocks() == self._pool.num_gpu_blocks - 1)

    def look(self, reservations: Mapping[str, Sequence[int]], *, idle: bool = False) -> Views:
        """Take one look. From another thread than the scheduler's it may catch a change half-way.

        `idle`: no request is left, so that none owns anything, whether or not the scheduler can be asked.
        """
        return Views(
            references=[block.ref_cnt for block in self._pool.blocks],
            free=[block.block_id for block in self._pool.free_block_queue.get_all_free_blocks()],
            null=self._pool.null_block.block_id,
            requests=self._requests() if self._tables or idle else None,
            reservations=reservations,
        )

    def _requests(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for table in self._tables:  # one per KV group; a copy in one go, since the scheduler goes on
            for request_id, blocks in list(table.items()):
                found.setdefault(request_id, []).extend(block.block_id for block in list(blocks) if not block.is_null)
        return found
