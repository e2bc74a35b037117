"""Puts the scheduler's sides together from what vLLM knows."""

from typing import TYPE_CHECKING

from baton.contracts.kv_transfer import Grid
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.layout.groups import block_tokens_of, groups_of
from baton.kv_connector.scheduler_side.answer_tokens import ModelLimits
from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from baton.kv_connector.scheduler_side.scheduler import has_our_scheduler
from baton.kv_connector.scheduler_side.sides import SchedulerSides
from baton.kv_connector.vllm_compat.lora import adapters_of
from baton.kv_connector.vllm_compat.media import media_of
from baton.kv_connector.vllm_compat.sampling_digest import sampling_digest

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def make_scheduler_sides(
    vllm_config: "VllmConfig", config: ConnectorConfig, kv_cache_config: "KVCacheConfig"
) -> SchedulerSides:
    secret, parallel, model = config.secret(), vllm_config.parallel_config, vllm_config.model_config
    block_tokens = block_tokens_of(vllm_config, kv_cache_config)
    groups = groups_of(kv_cache_config, block_tokens)
    grid = Grid(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    adapters = adapters_of(vllm_config)
    is_ours = has_our_scheduler(vllm_config)
    sampling = sampling_digest(vllm_config) if is_ours else ""
    media = media_of(vllm_config, keeps_media=is_ours)
    prefill, decode = None, None
    if "prefill" in config.roles:
        prefill = PrefillScheduler(
            secret,
            block_tokens,
            grid,
            groups=groups,
            adapters=adapters,
            media=media,
            sampling=sampling,
            answers=ModelLimits(model.get_vocab_size(), model.max_model_len) if config.transfer.both_ways else None,
        )
    if "decode" in config.roles:
        decode = DecodeScheduler(
            config,
            secret,
            block_tokens,
            grid,
            has_prefix_cache=bool(vllm_config.cache_config.enable_prefix_caching),
            sampling=sampling,
            vocab_size=model.get_vocab_size(),
            groups=groups,
            adapters=adapters,
            media=media,
        )
    return SchedulerSides(config.role, prefill, decode)
