"""What of vLLM our code uses and `relied` cannot derive, and where vLLM calls its connectors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("kv_connector", "model_runner", "node", "prefill_node", "decode_node")
FILES = (
    *sorted(file for room in ROOMS for file in (ROOT / "baton" / room).rglob("*.py")),
    ROOT / "baton" / "deploy" / "vllm_preload.py",
)
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1"

BATON = "baton/kv_connector/connector.py"  # our class that stands in for it
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

# Of a class: its members; of a module (without a colon): its names. Only what `relied` cannot find: where our code has `Any`.
USED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        # kv_connector
        "vllm.config:KVTransferConfig": (
            "kv_connector_module_path",
            "kv_load_failure_policy",
        ),  # node/startup/arguments.py
        "vllm.config:ParallelConfig": ("decode_context_parallel_size", "prefill_context_parallel_size"),
        CONNECTOR: ("_kv_cache_manager",),
        "vllm.lora.request:LoRARequest": ("is_3d_lora_weight", "load_inplace", "lora_int_id", "lora_path"),
        "vllm.model_executor.layers.attention.attention:Attention": (
            "get_attn_backend",
            "kv_sharing_target_layer_name",
        ),
        "vllm.model_executor.layers.mamba.abstract:MambaBase": ("get_state_dtype", "get_state_shape"),
        "vllm.v1.request:Request": ("drop_stale_output", "num_in_flight_tokens", "num_stale_output_tokens"),
        "vllm.v1.engine:EngineCoreOutput": ("finish_reason", "new_token_ids", "request_id"),
        "vllm.v1.engine:EngineCoreOutputs": ("outputs",),
        "vllm.v1.core.kv_cache_manager:KVCacheManager": ("coordinator",),
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator": ("single_type_managers",),
        "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager": ("req_to_blocks",),
        "vllm.v1.kv_cache_interface:MambaSpec": ("mamba_cache_mode", "num_speculative_blocks"),
        "vllm.v1.kv_cache_interface:SlidingWindowSpec": ("sliding_window",),
        "vllm.v1.kv_cache_interface:UniformTypeKVCacheSpecs": ("kv_cache_specs",),
        # model_runner
        "vllm.v1.worker.gpu_model_runner:AsyncGPUModelRunnerOutput": ("get_output",),
        "vllm.distributed.parallel_state:GroupCoordinator": (
            *("cpu_group", "device_group", "irecv_tensor_dict", "isend_tensor_dict", "rank_in_group", "world_size"),
        ),
        # node
        "vllm.engine.arg_utils:AsyncEngineArgs": (
            *("create_engine_config", "enforce_eager", "kv_cache_memory_bytes", "kv_transfer_config", "model"),
            *("shutdown_timeout", "worker_cls"),
        ),
        "vllm.v1.executor.multiproc_executor:MultiprocExecutor": ("__init__",),
        "vllm.entrypoints.openai.models.serving:OpenAIServingModels": ("lora_requests",),
        # deploy/vllm_preload.py
        "vllm.v1.engine.async_llm": ("AsyncLLM",),
        "vllm.model_executor.models.registry": ("ModelRegistry",),
    }
)

# What stands where a name of vLLM's could, and is none: methods of ours that vLLM calls by name or does not call, and others'.
NOT_VLLMS = (
    "on_kv_cache_written",  # vllm-ascend calls it on connectors that have it
    *("pipeline_counts", "token_report"),  # called over vLLM's `collective_rpc`
    *("__bool__", "__class__", "__dict__"),
    "_later",  # of our queue of outputs
    "_taken",  # likewise
    *(
        "baton_start",
        "baton_start_at_once",
        "baton_goes_on",
        "baton_logged",
        "baton_kv_is_lost",
    ),  # attributes that we give to requests
    "tokens_sampled",  # our workers call it
    "token_transfer",  # of our runners; vLLM's have none
    "kv_cache_specs",  # of one kind of `KVCacheSpec`; among USED
    "make_empty_intermediate_tensors",  # of the model, which vLLM wraps
)
