"""Everything of vLLM that Baton calls or reads and does not import by name, by module and class, with who does it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("kv_connector", "model_runner", "node", "prefill_node", "decode_node")
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"

GROUPS = "vllm.distributed.kv_transfer.kv_connector.v1.base:SupportsHMA"  # the other base, for several KV cache groups

# Where vLLM calls its connectors' hooks.
CALLERS = (
    "vllm.config.vllm",
    "vllm.distributed.kv_transfer.kv_connector.factory",
    "vllm.distributed.kv_transfer.kv_connector.utils",
    "vllm.model_executor.layers.attention.kv_transfer_utils",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu.kv_connector",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.kv_connector_model_runner_mixin",
)

# Of a class: its members; of a module (without a colon): its names.
USED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        # kv_connector
        "vllm.config:CacheConfig": ("block_size", "cache_dtype", "enable_prefix_caching", "kv_cache_layout"),
        "vllm.config:CompilationConfig": ("static_forward_context",),
        "vllm.config:LoRAConfig": (  # adapter.py; the last is younger than our oldest version
            *("enable_mixed_moe_lora_format", "enable_tower_connector_lora", "lora_dtype", "target_modules"),
            "enable_moe_shared_loras",
        ),
        "vllm.config:KVTransferConfig": (
            *("is_kv_producer", "kv_connector_extra_config"),
            *("kv_connector", "kv_connector_module_path", "kv_load_failure_policy", "kv_role"),  # node/arguments.py
        ),
        "vllm.config:ModelConfig": (
            *("dtype", "enable_sleep_mode", "get_total_num_kv_heads", "hf_config", "max_model_len", "quantization"),
            "use_mla",
        ),
        "vllm.config:ParallelConfig": (
            *("data_parallel_index", "decode_context_parallel_size", "distributed_executor_backend"),
            *("local_world_size", "nnodes", "nnodes_within_dp", "node_rank_within_dp", "pipeline_parallel_size"),
            *("prefill_context_parallel_size", "rank", "tensor_parallel_size", "use_ubatching"),
        ),
        "vllm.config:VllmConfig": (
            *("cache_config", "compilation_config", "kv_transfer_config", "lora_config", "model_config"),
            *("parallel_config", "speculative_config"),
        ),
        CONNECTOR: ("_kv_cache_config", "_kv_cache_manager", "_kv_transfer_config", "_vllm_config"),
        GROUPS: ("request_finished_all_groups",),
        "vllm.distributed.device_communicators.shm_broadcast": ("sched_yield",),  # spinning.py takes its place
        "vllm.v1.attention.backends.cpu_attn": ("_get_attn_isa",),
        "vllm.v1.core.block_pool:BlockPool": (
            *("blocks", "free_block_queue", "free_blocks", "get_num_free_blocks", "null_block", "num_gpu_blocks"),
            "touch",
        ),
        "vllm.v1.core.kv_cache_manager:KVCacheBlocks": ("blocks",),
        "vllm.v1.core.kv_cache_manager:KVCacheManager": ("coordinator",),
        "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue": ("get_all_free_blocks",),
        "vllm.v1.core.kv_cache_utils:KVCacheBlock": ("block_id", "is_null", "ref_cnt"),
        "vllm.v1.core.sched.output:CachedRequestData": ("new_block_ids", "num_computed_tokens", "req_ids"),
        "vllm.v1.core.sched.output:NewRequestData": (
            *("block_ids", "num_computed_tokens", "prompt_token_ids", "req_id"),
        ),
        "vllm.v1.core.sched.output:SchedulerOutput": (
            *("num_scheduled_tokens", "preempted_req_ids", "scheduled_cached_reqs", "scheduled_new_reqs"),
        ),
        "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager": ("req_to_blocks",),
        "vllm.v1.engine.core": ("time",),  # wake.py takes its place
        "vllm.model_executor.layers.mamba.abstract:MambaBase": ("get_state_dtype", "get_state_shape"),
        "vllm.lora.request:LoRARequest": ("is_3d_lora_weight", "load_inplace", "lora_int_id", "lora_name", "lora_path"),
        "vllm.model_executor.layers.attention.attention:Attention": ("kv_sharing_target_layer_name",),
        "vllm.v1.executor.abstract:Executor": ("add_lora",),  # adapter_loading.py stands around it
        "vllm.v1.kv_cache_interface:KVCacheConfig": ("kv_cache_groups", "num_blocks"),
        "vllm.v1.kv_cache_interface:KVCacheGroupSpec": ("kv_cache_spec", "layer_names"),
        "vllm.v1.kv_cache_interface:MambaSpec": ("mamba_cache_mode",),
        "vllm.v1.kv_cache_interface:SlidingWindowSpec": ("sliding_window",),
        "vllm.v1.outputs:KVConnectorOutput": ("finished_recving", "finished_sending", "kv_connector_worker_meta"),
        "vllm.v1.request:Request": (
            *("cache_salt", "kv_transfer_params", "lora_request", "mm_features", "num_computed_tokens"),
            *("num_prompt_tokens", "prefill_stats", "prompt_embeds", "prompt_token_ids", "request_id"),
            *("skip_reading_prefix_cache", "status"),
            *("_all_token_ids", "max_tokens", "sampling_params"),  # shortening.py
        ),
        "vllm.v1.metrics.stats:PrefillStats": ("num_cached_tokens", "num_local_cached_tokens"),
        "vllm.v1.request:RequestStatus": (
            *("FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION", "FINISHED_STOPPED", "WAITING_FOR_REMOTE_KVS"),
        ),
        # model_runner
        "vllm.v1.worker.cpu_worker:CPUWorker": ("__init__", "compile_or_warm_up_model", "init_device"),
        "vllm.v1.worker.gpu_worker:Worker": ("__init__",),
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner": (
            *("device", "intermediate_tensors", "max_num_tokens", "model", "model_config"),
            *("input_batch", "transfer_event", "use_async_scheduling", "vllm_config"),
            *(
                "_bookkeeping_sync",
                "_to_list",
                "_update_states_after_model_execute",
            ),  # event_synced.py stands around them
            *("draft_token_ids_cpu", "draft_token_ids_event", "num_accepted_tokens_event", "prepare_inputs_event"),
            *("valid_sampled_token_count_cpu", "valid_sampled_token_count_event"),
            *("_num_valid_draft_tokens_cpu", "_num_valid_draft_tokens_event"),
        ),
        "vllm.v1.worker.gpu_input_batch:InputBatch": ("num_accepted_tokens_cpu_tensor",),
        "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput": ("get_output",),
        "vllm.v1.worker.cpu_worker": ("CPUModelRunner",),  # cpu.py takes its place
        "vllm.distributed.parallel_state:GroupCoordinator": (
            *("cpu_group", "device_group", "irecv_tensor_dict", "isend_tensor_dict", "rank_in_group", "world_size"),
        ),
        # node
        "vllm.engine.arg_utils:AsyncEngineArgs": (
            *(
                "enforce_eager",
                "kv_cache_memory_bytes",
                "kv_transfer_config",
                "model",
                "shutdown_timeout",
                "worker_cls",
            ),
            *("create_engine_config", "from_cli_args"),  # follower.py
        ),
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor": (
            *("__init__", "shutdown", "start_worker_monitor", "workers"),
        ),
        "vllm.entrypoints.openai.models.serving:OpenAIServingModels": ("lora_requests",),
        # deploy/vllm_preload.py
        "vllm.v1.engine.async_llm": ("AsyncLLM",),
        "vllm.model_executor.models.registry": ("ModelRegistry",),
        "vllm.v1.engine.utils": ("get_mp_context",),
        "vllm.v1.engine.coordinator": ("get_mp_context",),
        "vllm.v1.executor.multiproc_executor": ("get_mp_context",),
    }
)


class Override(NamedTuple):
    """A class of ours that vLLM calls, and the one of vLLM's that it stands in for."""

    ours: str
    theirs: str


OVERRIDES = (
    Override("kv_connector.connector:BatonConnector", CONNECTOR),
    Override(
        "kv_connector.fenced_offloading:OffloadingConnector",
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector:OffloadingConnector",
    ),
    Override("kv_connector.metadata:DecodeReport", f"{CONNECTOR.partition(':')[0]}:KVConnectorWorkerMetadata"),
    Override("model_runner.cpu:Worker", "vllm.v1.worker.cpu_worker:CPUWorker"),
    Override("model_runner.cpu:EngineWorker", "vllm.v1.worker.cpu_worker:CPUWorker"),
    Override("model_runner.cuda:Worker", "vllm.v1.worker.gpu_worker:Worker"),
    Override("model_runner.cuda:EngineWorker", "vllm.v1.worker.gpu_worker:Worker"),
    Override("model_runner.reports:Reports", "vllm.v1.worker.gpu_worker:Worker"),
    Override("model_runner.ties:Tied", "vllm.v1.worker.gpu_worker:Worker"),
    Override("model_runner.runner.event_synced:EventSynced", "vllm.v1.worker.gpu_model_runner:GPUModelRunner"),
)
