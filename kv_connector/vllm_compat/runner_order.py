"""What a node that sends KV needs of vLLM's model runner: hooks that run, in an order that keeps I2.

vLLM's V2 runner calls `handle_preemptions` after it has zeroed and copied blocks: by then P may have committed what a
preempted prompt no longer holds. A worker class that calls it before vLLM's own `execute_model` says `voids_first`.

Full CUDA graphs call no hooks at all. vLLM lowers `cudagraph_mode` for a connector that asks for it; here it is checked
that nothing has raised it again, or was asked in another way.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from vllm import envs

from baton.kv_connector.errors import ConnectorConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

VOIDS_FIRST: Final = "voids_first"  # attribute of a worker class


def check_order(vllm_config: "VllmConfig") -> None:
    """Check, in a worker's process, that a node that sends KV voids what a step takes away before vLLM touches it.

    Raises `ConnectorConfigError` if a worker class that does not would drive vLLM's V2 runner.
    """
    if not _sends(vllm_config) or not getattr(vllm_config, "use_v2_model_runner", False):
        return
    worker = vllm_config.parallel_config.worker_cls
    if not getattr(_resolve(worker), VOIDS_FIRST, False):
        raise ConnectorConfigError(
            f"on vLLM's V2 model runner a node that sends KV could send blocks that have been zeroed, since the worker class {worker} "
            "does not tell the connector of preemptions first: use --worker-cls baton.model_runner.cuda.EngineWorker (on an NPU "
            "baton.model_runner.npu.EngineWorker), or set VLLM_USE_V2_MODEL_RUNNER=0"
        )


def check_graphs(vllm_config: "VllmConfig", layer_sync: str) -> None:
    """Check that the hooks of a prefill node's layers run, if its policy needs them.

    Raises `ConnectorConfigError` if the forward pass, steps of it or its attention would be captured in graphs.
    """
    if not _sends(vllm_config) or layer_sync == "forward":
        return
    graphs = vllm_config.compilation_config
    mode = graphs.cudagraph_mode
    if mode is None or not mode.value:
        return
    otherwise = "or transfer.layer_sync to forward"
    if mode.has_full_cudagraphs():
        raise ConnectorConfigError(
            f"cudagraph_mode {mode.name} captures whole forward passes, in which no layer's hook runs: on a prefill node set it to "
            f"PIECEWISE or NONE (fuse_attn_quant makes FULL of either, unless use_inductor_graph_partition is on), {otherwise}"
        )
    if not getattr(envs, "VLLM_USE_BREAKABLE_CUDAGRAPH", False) and not graphs.splitting_ops_contain_attention():
        raise ConnectorConfigError(
            "with these splitting_ops attention is captured in graphs, in which no layer's hook runs: on a prefill node leave "
            f"splitting_ops out, set cudagraph_mode to NONE, {otherwise}"
        )


def _sends(vllm_config: "VllmConfig") -> bool:
    return bool(vllm_config.kv_transfer_config and vllm_config.kv_transfer_config.is_kv_producer)


def _resolve(named: Any) -> Any:
    """Return a class that vLLM was given as such or by its path."""
    if not isinstance(named, str):
        return named
    module, _, name = named.rpartition(".")
    return getattr(import_module(module), name, None) if module else None
