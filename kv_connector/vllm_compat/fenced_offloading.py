"""vLLM's OffloadingConnector with the fence that it lacks beside a connector whose blocks a peer fills.

It copies a finished request's blocks to the host when they may have been given away already. So before a step runs it
waits for the copies of all blocks that the step *writes*: those of scheduled requests, and those that it loads itself.
Blocks that Baton has just reserved are neither, and a peer may write to them as soon as the step has begun: what the
host then keeps under the finished request's hash is another prompt's KV. Here these blocks count as well, so that the
copies have been made before `bind_connector_metadata`, and with it RESERVE (I6).
"""

from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector as Unfenced

from baton.kv_connector.errors import ConnectorConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

ALLOCATED = "_current_batch_allocated_block_ids"  # vLLM 0.32: what the step under construction writes to


class OffloadingConnector(Unfenced):
    """The same by name too: vLLM finds a connector's metrics by the name of its class."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role is KVConnectorRole.SCHEDULER and not isinstance(getattr(self.scheduler, ALLOCATED, None), set):
            raise ConnectorConfigError(
                "this vLLM's OffloadingConnector does not say which blocks a step writes: empty `beside`"
            )

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """Blocks are allocated for a request, by whatever connector they are filled."""
        allocated: set[int] = getattr(self.scheduler, ALLOCATED)
        allocated.update(block.block_id for group in blocks.blocks for block in group if not block.is_null)
        super().update_state_after_alloc(request, blocks, num_external_tokens)
