"""The facade that vLLM sees. No logic: every hook goes to the sides that this engine has of these.

|          | scheduler process                   | worker process                 |
|----------|-------------------------------------|--------------------------------|
| sends    | `scheduler_side.prefill`            | `worker_side.prefill`          |
| receives | `scheduler_side.decode`             | `worker_side.decode`           |

`scheduler_side.sides` and `worker_side.sides` hold them: both on a node that sends and receives, else one.

Loaded by vLLM through `kv_connector_module_path`. The order in which vLLM calls the worker's hooks in one step is
`handle_preemptions`, `bind_connector_metadata`, then per layer `wait_for_layer_load` and `save_kv_layer`, then
`start_load_kv` (after the forward pass!), `wait_for_save`, `get_transfer_results`, `build_connector_worker_meta`.
vLLM's V2 runner calls `finish_forward` after the forward pass, and what follows after sampling; our worker class calls
`handle_preemptions` for it, before it touches a block. `docs/decisions/0038-v2-runner.md` has both orders.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.request import RequestStatus

from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.control.status_server import StatusServer
from baton.kv_connector.handoff.metadata import DecodeReport, RankAddress, Step
from baton.kv_connector.layout.groups import block_tokens_of, groups_of, refuse_beside
from baton.kv_connector.scheduler_side.sides import SchedulerSides, make_scheduler_sides
from baton.kv_connector.supported import check_both_ways, check_supported
from baton.kv_connector.vllm_compat.busy_wait import pause_instead, spin_again
from baton.kv_connector.vllm_compat.node_role import role_of
from baton.kv_connector.vllm_compat.runner_order import check_graphs, check_order
from baton.kv_connector.vllm_compat.versions import (
    KNOWS_FAILED_RECEIVES,
    FailedLoads,
    cache_manager_of,
    check_engine,
)
from baton.kv_connector.vllm_compat.worker_deaths import watch_workers
from baton.kv_connector.worker_side.hosts import door_of, verify_hosts_agree
from baton.kv_connector.worker_side.sides import WorkerSides
from baton.kv_connector.worker_side.worker_factory import make_worker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
    from vllm.v1.request import Request

# How a request may end and still leave a complete prompt behind: its first token was the end, or its only one.
_COMPLETED = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)


# vLLM gives a model's layers several groups only to a connector that says it can have them.
_Groups: Any = SupportsHMA if KNOWS_FAILED_RECEIVES else object


class BatonConnector(KVConnectorBase_V1, _Groups):
    """Pushes KV from prefill to decode nodes, layer by layer; also of models with several KV cache groups."""

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        """Read the configuration; threads start with `register_kv_caches` and `bind_gpu_block_pool`."""
        super().__init__(vllm_config, role, kv_cache_config)
        own = role_of(self._kv_transfer_config)
        check_engine(own)
        check_supported(vllm_config, kv_cache_config)
        if vllm_config.device_config.device_type == "cpu":
            pause_instead()
        extra = self._kv_transfer_config.kv_connector_extra_config
        found = {"role": own, "engine": vllm_config.parallel_config.data_parallel_index}
        self._config = ConnectorConfig.from_extra({**extra, **found})
        groups = groups_of(kv_cache_config, block_tokens_of(vllm_config, kv_cache_config))
        if self._config.has_neighbours:
            refuse_beside(groups)
        if self._config.transfer.both_ways:
            check_both_ways(vllm_config, groups, has_neighbours=self._config.has_neighbours)
            for each in self._config.roles:
                check_engine(each)
        check_graphs(vllm_config, self._config.layer_sync)
        if role is KVConnectorRole.WORKER:
            check_order(vllm_config)
        self._config.engine_dir.mkdir(mode=0o700, exist_ok=True)
        # Of the other process's sides it has none, and of a worker's none before its KV cache is allocated.
        self._scheduler = SchedulerSides(own, None, None)
        self._worker = WorkerSides(own, None, None, pushes_layers=False)
        self._introduced: RankAddress | None = None
        self._failed_loads = FailedLoads()
        self._status: StatusServer | None = None
        self._integrity: StatusServer | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = make_scheduler_sides(vllm_config, self._config, kv_cache_config)

    # --- worker ---

    def register_kv_caches(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        """Start the worker: the KV cache is allocated, and vLLM has settled which graphs it captures."""
        check_graphs(self._vllm_config, self._config.layer_sync)
        worker = self._worker = make_worker(self._vllm_config, self._config, self._kv_cache_config, kv_caches)
        self._introduced = RankAddress(index=worker.rank, address=worker.address)
        path = self._config.engine_dir / f"worker-{worker.rank}.sock"
        door = door_of(self._vllm_config, self._config, path)
        self._status = StatusServer(path, worker.snapshot, worker.cancel, worker.timeline, door)
        worker.start()
        self._status.start()
        verify_hosts_agree(self._vllm_config, self._config)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._introduced

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Void what this step takes away, before zeroing or copying touches the blocks."""
        if isinstance(kv_connector_metadata, Step):
            self._worker.void(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if not isinstance(connector_metadata, Step):
            return
        if connector_metadata.decode is not None:
            reserved = connector_metadata.decode.reserved
            self._failed_loads.begin_step((each.request_id, each.wish.blocks[0][0]) for each in reserved)
        self._worker.begin_step(connector_metadata)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        """Nothing: loads are started by the peer's pushes."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A layer's attention is next: P may wait for the layers so far. D's requests have all their KV already."""
        self._worker.attention_begins(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: "torch.Tensor", attn_metadata: "AttentionMetadata", **kwargs: Any
    ) -> None:
        self._worker.kv_issued(layer_name)

    def on_kv_cache_written(self, layer_name: str = "") -> None:
        """A layer's KV has been issued, its attention has not: vllm-ascend's own hook, often without the name."""
        self._worker.kv_issued(layer_name)

    def finish_forward(self) -> None:
        """The forward pass has been issued: vLLM's V2 runner says it before it samples."""
        self._worker.finish_forward()

    def wait_for_save(self) -> None:
        """The step has been issued; nothing waits."""
        self._worker.end_step()

    def tokens_sampled(self, output: "ModelRunnerOutput") -> None:
        """A step's tokens are on the host: our worker class says it, from any thread."""
        self._worker.tokens_sampled(output)

    def get_transfer_results(self, finished_req_ids: set[str]) -> "KVConnectorTransferResults":
        """Which requests' sends and receives have ended since the last step, each once."""
        return self._worker.take_results()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """The same as asked by a vLLM that does not know `get_transfer_results`."""
        return self._failed_loads.split(self.get_transfer_results(finished_req_ids))

    def get_block_ids_with_load_errors(self) -> set[int]:
        """How such a vLLM is told which of the receives failed; no others."""
        return self._failed_loads.take_blocks()

    def build_connector_worker_meta(self) -> DecodeReport | None:
        return self._worker.take_report()

    def shutdown(self) -> None:
        """Stop all threads; the engines are closed, so no peer can write any more."""
        for part in (self._status, self._integrity, self._worker):
            if part is not None:
                part.stop()
        self._scheduler.close()
        spin_again()

    # --- scheduler ---

    @property
    def requires_kv_delivery(self) -> bool:
        """Whether vLLM drops the tokens in flight of a request that it preempts; else they are output. Such a request's prompt is sent in neither case.

        A decode node that sends too is a producer to vLLM, whose default this is: it would drop tokens of its streams.
        """
        return self._config.role == "prefill"

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        self._scheduler.bind_pool(gpu_block_pool, cache_manager_of(self))
        self._status = StatusServer(self._config.engine_dir / "scheduler.sock", self._scheduler.snapshot)
        self._integrity = StatusServer(self._config.engine_dir / "integrity.sock", self._scheduler.integrity.ask)
        self._status.start()
        self._integrity.start()
        watch_workers()

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: "Mapping[tuple[int, int], KVConnectorHandshakeMetadata]"
    ) -> None:
        ranks = sorted((rank for rank in metadata.values() if isinstance(rank, RankAddress)), key=lambda r: r.index)
        self._scheduler.addresses = [rank.address for rank in ranks if rank.address]

    def on_new_request(self, request: "Request") -> None:
        self._scheduler.add_request(request)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """D's layers with attention may have more of a prompt cached than its recurrent layers have a state for."""
        return self._scheduler.decode is not None and self._scheduler.decode.hits_may_diverge

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.match(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: "Request") -> tuple[int, ...]:
        """All groups: vLLM must not zero what a peer fills (E6)."""
        return tuple(range(len(self._kv_cache_config.kv_cache_groups)))

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        return self._scheduler.take_step(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        report = connector_output.kv_connector_worker_meta
        self._scheduler.update(
            connector_output.finished_sending or set(),
            report if isinstance(report, DecodeReport) else DecodeReport(),
            connector_output.finished_recving or set(),
        )

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended; True keeps its blocks until `finished_sending`."""
        return self._scheduler.finish_request(request, aborted=request.status not in _COMPLETED), None

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same as asked by a vLLM that may have several KV cache groups."""
        return self.request_finished(request, block_ids[0])

    def has_pending_push_work(self) -> bool:
        """Keep stepping while a peer may write to some block: it is a step that gives it back."""
        return self._scheduler.has_open_reservations()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str | None:
        """Each head's tokens together, so that ranks of other tensor-parallel sizes can take their heads.

        A connector that stands beside ours asks for the same by the name that its version of vLLM has for it.
        """
        if vllm_config.kv_transfer_config.kv_connector_extra_config.get("has_neighbours"):
            return None
        return None if vllm_config.model_config is None or vllm_config.model_config.use_mla else "HND"

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Hooks do not run inside captured full graphs; only prefill nodes set `layerwise`."""
        return bool(extra_config.get("layerwise", False))

    def take_events(self) -> Iterable[Any]:
        """No cache events of our own; but this is the last that vLLM asks of us in a step, when all blocks are back."""
        self._scheduler.integrity.step_ends()
        return ()
