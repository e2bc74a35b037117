"""What this connector can hand off today. Everything else is refused at start, with the reason."""

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import FullAttentionSpec

from kv_connector.drafting import objection
from kv_connector.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def check_supported(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
    """Check that requests of this engine can be handed off.

    Raises:
        ConfigError: they cannot; the message says what to change.
    """
    parallel = vllm_config.parallel_config
    for kind in ("prefill", "decode"):
        if getattr(parallel, f"{kind}_context_parallel_size", 1) > 1:
            raise ConfigError(
                f"{kind} context parallelism divides a prompt's tokens among ranks: it is not covered yet"
            )
    if parallel.distributed_executor_backend == "ray":
        raise ConfigError(
            "ranks that Ray places on other hosts are not covered yet: use --distributed-executor-backend mp"
        )
    if parallel.use_ubatching:
        raise ConfigError("dual-batch overlap fires each layer's hook twice from two threads: turn it off")
    if vllm_config.model_config.enable_sleep_mode:
        raise ConfigError("sleep mode unmaps memory that peers read and write: turn it off")
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):  # of older versions
        raise ConfigError(
            "--calculate-kv-scales lets each node scale its KV in its own way: use the checkpoint's scales"
        )
    if len(kv_cache_config.kv_cache_groups) > 1:
        raise ConfigError("models with several KV cache groups are not covered by the hand-off yet")
    (group,) = kv_cache_config.kv_cache_groups
    spec = getattr(group.kv_cache_spec, "first_spec", group.kv_cache_spec)  # of layers that differ in size only
    if not isinstance(spec, FullAttentionSpec):
        kind = type(spec).__name__
        raise ConfigError(
            f"a KV cache of kind {kind}, which frees blocks while a prompt is computed, is not covered yet"
        )
    if reason := objection(vllm_config):
        raise ConfigError(reason)
