"""Which combinations this connector refuses at start, with the reason; the kinds of KV cache that it knows stand in `layout/groups.py`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.layout.groups import Group, block_tokens_of, groups_of, have_states, have_windows, state_kinds
from baton.kv_connector.scheduler_side.scheduler import has_our_scheduler
from baton.kv_connector.vllm_compat.node_role import role_of
from baton.kv_connector.vllm_compat.speculative import BESIDE_STATES, objection
from baton.kv_connector.vllm_compat.versions import COUNTS_ACCEPTED_DRAFTS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

# Beside drafts: vLLM 0.32 tells the kernels of these kinds of recurrent layer which drafts were accepted.
_KINDS_BESIDE_DRAFTS: Final = ("MAMBA2", "GDN_ATTN")
DEVICES_BESIDE_DRAFTS: tuple[str, ...] = ("cuda",)


def check_supported(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
    """Raise `ConnectorConfigError`, with what to change, if requests of this engine cannot be handed off."""
    parallel = vllm_config.parallel_config
    for kind in ("prefill", "decode"):
        if getattr(parallel, f"{kind}_context_parallel_size", 1) > 1:
            raise ConnectorConfigError(
                f"{kind} context parallelism divides a prompt's tokens among ranks: it is not covered yet"
            )
    if parallel.distributed_executor_backend == "ray":
        raise ConnectorConfigError(
            "Ray would give ranks on other hosts this host's addresses: start Baton on each host instead, with --nnodes, "
            "--node-rank and --master-addr"
        )
    if getattr(parallel, "nnodes", 1) > 1 and parallel.data_parallel_size > 1:
        raise ConnectorConfigError(
            "a node of several hosts has one engine: give each data-parallel engine a node of its own"
        )
    if parallel.use_ubatching:
        raise ConnectorConfigError("dual-batch overlap fires each layer's hook twice from two threads: turn it off")
    if vllm_config.model_config.enable_sleep_mode:
        raise ConnectorConfigError("sleep mode unmaps memory that peers read and write: turn it off")
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):  # of older versions
        raise ConnectorConfigError(
            "--calculate-kv-scales lets each node scale its KV in its own way: use the checkpoint's scales"
        )
    groups = groups_of(kv_cache_config, block_tokens_of(vllm_config, kv_cache_config))
    if reason := objection(vllm_config):
        raise ConnectorConfigError(reason)
    _check_groups(vllm_config, groups, kv_cache_config)


def check_both_ways(vllm_config: "VllmConfig", groups: Sequence[Group], *, has_neighbours: bool) -> None:
    """Raise `ConnectorConfigError` if the KV of answers cannot be sent out of this engine's prefix cache."""
    reason = ""
    if have_states(groups):
        reason = "recurrent layers (Mamba, GDN) keep a state, which is that of the last token computed: an answer's cannot be sent while it goes on"
    elif not vllm_config.cache_config.enable_prefix_caching:
        reason = "the KV of answers is sent out of vLLM's prefix cache, and it is off"
    elif have_windows(groups):
        reason = "of layers with a window vLLM 0.32 caches what stands before a prompt's end, and no block of an answer"
    elif has_neighbours:
        reason = "it has not been tried with another KV connector in `beside`"
    elif vllm_config.speculative_config is not None and vllm_config.parallel_config.pipeline_parallel_size > 1:
        reason = "speculative decoding beside pipeline stages is not covered on a node that sends KV"
    if reason:
        raise ConnectorConfigError(f"transfer.both_ways cannot be had with this engine, turn it off: {reason}")


def _check_groups(vllm_config: "VllmConfig", groups: Sequence[Group], cache: "KVCacheConfig") -> None:
    settings = vllm_config.speculative_config
    if settings is not None and any(group.window < 0 for group in groups):
        raise ConnectorConfigError("speculative decoding has not been tried with chunked local attention")
    if not have_states(groups):
        if settings is not None and settings.method != "mtp" and (len(groups) > 1 or have_windows(groups)):
            raise ConnectorConfigError(
                f"speculative decoding with method {settings.method!r} has not been tried with a sliding window or several KV "
                "cache groups: an MTP drafter has, if the model has one"
            )
        return
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise ConnectorConfigError(
            "recurrent layers (Mamba, GDN) have not been tried with pipeline stages: use tensor parallelism"
        )
    is_cached = any(group.is_state and not group.is_single for group in groups)
    if settings is not None and (reason := _drafts_beside_states(vllm_config, groups, cache, is_cached=is_cached)):
        raise ConnectorConfigError(f"speculative decoding with recurrent layers (Mamba, GDN) {reason}")
    if is_cached and role_of(vllm_config.kv_transfer_config) == "prefill" and not has_our_scheduler(vllm_config):
        raise ConnectorConfigError(
            "a prefill node that goes on from a recurrent layer's cached state (Mamba, GDN) needs the node's own scheduler: another one "
            "may end a prompt's chunks within blocks; leave out --scheduler-cls, or start with --no-enable-prefix-caching"
        )
    unit = getattr(vllm_config.cache_config, "prefix_match_unit", None)  # younger than our oldest version
    if unit and is_cached:
        raise ConnectorConfigError(
            "--prefix-match-unit lets a cached prefix end within a block, whose state vLLM copies as it goes on: it has not been "
            "tried with recurrent layers (Mamba, GDN): leave it out"
        )
    if getattr(vllm_config.cache_config, "use_replayssm", False):  # younger than our oldest version
        raise ConnectorConfigError(
            "--use-replayssm keeps parts of a recurrent layer's state outside the KV cache: leave it out"
        )


def _drafts_beside_states(
    vllm_config: "VllmConfig", groups: Sequence[Group], cache: "KVCacheConfig", *, is_cached: bool
) -> str:
    """Return why drafts and states do not go together in this engine; "" if they do.

    Source:
        `GPUModelRunner._update_states_after_model_execute` of vLLM 0.32 counts accepted tokens of hybrid models alone,
        and copies their cached states; `InputBatch.add_request` of its V1 runner forgets those of a skipped stream.
    """
    method, device = vllm_config.speculative_config.method, vllm_config.device_config.device_type
    if not COUNTS_ACCEPTED_DRAFTS:
        return "needs vLLM 0.32 or newer: after a step without drafts an older one may go on from another state"
    if method not in BESIDE_STATES:
        return f"has not been tried with method {method!r}: use one of {', '.join(BESIDE_STATES)}"
    if device not in DEVICES_BESIDE_DRAFTS:
        return f"is not covered on a {device} device: kernels there do not go on from the last draft that was accepted"
    if others := sorted(state_kinds(cache).difference(_KINDS_BESIDE_DRAFTS)):
        return f"is not covered for layers of kind {', '.join(others)}: their kernels are not told which drafts were accepted"
    if all(group.is_state for group in groups):
        return "and no attention is not covered: vLLM does not count which drafts such a model accepts"
    if is_cached:
        return (
            "and a prefix cache has not been tried: vLLM then copies states after a step too; start with "
            "--no-enable-prefix-caching"
        )
    return "" if getattr(vllm_config, "use_v2_model_runner", False) else _missed_steps(vllm_config)


def _missed_steps(vllm_config: "VllmConfig") -> str:
    """Return why a stream may be left out of a step; "" if it cannot. vLLM's V1 runner then forgets which drafts it had accepted."""
    scheduler = vllm_config.scheduler_config
    if scheduler.long_prefill_token_threshold:
        return "lets several long prompts leave streams out of a step, which V1 does not cover: leave out --long-prefill-token-threshold"
    most = scheduler.max_num_seqs * (1 + vllm_config.speculative_config.num_speculative_tokens)
    if most > (scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens):
        return (
            "needs room for all streams in each step, since vLLM's V1 runner forgets which drafts a stream that misses one had accepted: "
            f"set --max-num-batched-tokens to {most} at least, or --max-num-seqs lower"
        )
    return ""
