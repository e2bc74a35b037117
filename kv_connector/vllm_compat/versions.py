"""What differs between the versions of vLLM that the connector runs on. All of it is here.

What is there decides, never a comparison of version numbers. `docs/decisions/0023-versions.md` lists the differences;
`tests/unit/test_vllm_signatures.py` checks that there are no others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vllm import __version__
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.request import RequestStatus

from baton.contracts.kv_transfer import Role
from baton.kv_connector.errors import ConnectorConfigError

if TYPE_CHECKING:
    from vllm.v1.request import Request


@dataclass
class _TransferResults:
    """What `get_transfer_results` returns, for a vLLM that does not ask for it."""

    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


KNOWS_FAILED_RECEIVES = hasattr(base, "KVConnectorTransferResults")  # since 0.30
# Since 0.32, which has this hook: a step without drafts goes on from the recurrent state of the last draft that was
# accepted.
COUNTS_ACCEPTED_DRAFTS = hasattr(base.KVConnectorBase_V1, "get_loaded_kv_cache_group_ids")
TransferResults: Any = getattr(base, "KVConnectorTransferResults", _TransferResults)

_POOL = "the blocks that a peer writes to could come back to the pool too early"
_NEEDED: Mapping[Role, Mapping[str, str]] = MappingProxyType(
    {
        "prefill": {
            "on_new_request": "a prompt whose decode node has left could not be given up",
            "handle_preemptions": "blocks could be sent that another request has taken",
        },
        "decode": {
            "on_new_request": "a request could not be announced before it is scheduled",
            "bind_gpu_block_pool": _POOL,
            "build_connector_worker_meta": _POOL,
            "has_pending_push_work": "blocks that peers wrote to would not come back while the node has no other work",
        },
    }
)


def check_engine(role: Role, *, version: str = __version__, connector: type = base.KVConnectorBase_V1) -> None:
    """Check that this vLLM has every hook that a node's invariants need.

    Raises `ConnectorConfigError`, which names the version, the hook and what would go wrong.
    """
    for hook, consequence in _NEEDED[role].items():
        if not hasattr(connector, hook):
            raise ConnectorConfigError(
                f"vLLM {version} cannot run a {role} node: its connectors have no {hook}, and without it {consequence}"
            )


class FailedLoads:
    """Tells a vLLM before 0.30, by way of `get_finished`, which receives failed: it knows blocks, not requests.

    Naming the first block that was reserved is enough: it belongs to that request alone. vLLM would then go on with the
    tokens that it has in its own cache, in the same blocks; `restart` sees to it that it gives them back instead. With
    several KV cache groups such a vLLM cannot be told anything: block ids are unique within one only.
    """

    def __init__(self) -> None:
        self._first_block: dict[str, int] = {}  # of each request that waits for KV
        self._failed: set[int] = set()

    def begin_step(self, first_blocks: Iterable[tuple[str, int]]) -> None:
        """A step begins with these new reservations: request id, and the first of its blocks."""
        if not KNOWS_FAILED_RECEIVES:
            self._first_block.update(first_blocks)

    def split(self, results: Any) -> tuple[set[str], set[str]]:
        """What `get_finished` returns: requests whose sends and whose receives have ended, in whatever way."""
        for request_id in results.finished_recving:
            block = self._first_block.pop(request_id)
            if request_id in results.failed_recving:
                self._failed.add(block)
        return results.finished_sending, results.finished_recving

    def take_blocks(self) -> set[int]:
        """What `get_block_ids_with_load_errors` returns, each once."""
        failed, self._failed = self._failed, set()
        return failed


def restart(request: "Request") -> None:
    """Have a request whose receive failed give all its blocks back, as vLLM does by itself since 0.30 (I3).

    To be called in the update in which the receive is reported finished. The connector's own reference keeps the blocks
    that a peer may still write to out of the pool.
    """
    if not KNOWS_FAILED_RECEIVES and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        request.num_computed_tokens = 0


def cache_manager_of(connector: object) -> Any:
    """The cache manager, which vLLM hands to a connector since 0.30; else None."""
    return getattr(connector, "_kv_cache_manager", None)
