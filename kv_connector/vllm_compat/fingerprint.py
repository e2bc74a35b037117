"""What must be the same on two nodes for KV bytes to mean the same thing, read from vLLM's configuration."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

from baton.contracts.node_info import DRAFTS, Fingerprint
from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.vllm_compat import backends
from baton.kv_connector.vllm_compat.speculative import draft_layers
from baton.kv_connector.vllm_compat.states import states_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")


def fingerprint_of(vllm_config: "VllmConfig", weights: str, *, block_tokens: int = 0) -> Fingerprint:
    """Describe this node's KV; raises as `attention_of` does.

    `weights` is a digest of the configuration and weight files, or the hub revision; `block_tokens` are a scheduler
    block's, by default vLLM's own number.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    return Fingerprint(
        weights=weights + _said_otherwise(model),
        dtype=_name(model.dtype),
        kv_cache_dtype=_kv_cache_dtype(vllm_config),
        quantization=str(model.quantization or "none"),
        rope=rope_digest(model.hf_config),
        attention=attention_of(vllm_config),
        block_size_tokens=block_tokens or int(cache.block_size),
    )


def _said_otherwise(model: Any) -> str:
    """Digest what a node is told instead of what the model's own configuration says; empty where it is told nothing."""
    said = [getattr(model, name, None) for name in ("hf_overrides", "hf_config_path")]
    if not any(said):
        return ""
    return "+" + hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:16]


def rope_digest(hf_config: Any) -> str:
    """Digest the settings of the rotary embedding, those of the text part of a multimodal model included.

    A cached key has been rotated already: two nodes that rotate differently must not exchange it.
    """
    text_config = getattr(hf_config, "text_config", None)
    parts = [hf_config] if text_config is None else [hf_config, text_config]
    found = [{key: _plain(getattr(part, key, None)) for key in _ROPE_KEYS} for part in parts]
    text = json.dumps(found, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def attention_of(vllm_config: "VllmConfig") -> str:
    """Name the attention backends of this worker's layers, with the order in which they keep a block.

    CPU kernels pack K and V as their instruction set likes it, so an AMX node cannot read the blocks of an AVX node.
    Elsewhere heads or tokens come first, as backends prefer and connectors ask; both are equally long. Of a recurrent
    layer the shapes and types of its states are named, over all tensor-parallel ranks; they have their dimensions in
    one order or the other. So is how many tokens are drafted a step: a convolution keeps so many tokens more.

    Raises `ConnectorConfigError` if no layer has told vLLM of itself, as in a process without a model.
    """
    layers = dict(vllm_config.compilation_config.static_forward_context)
    for name in draft_layers(vllm_config, tuple(layers)):
        del layers[name]  # a peer may do without the drafter, or have another
    names = {_backend_of(layer, vllm_config) for layer in layers.values() if backends.name_of(layer)}
    if not names:
        raise ConnectorConfigError("this process has no attention layers, so its KV cannot be described")
    return "+".join(sorted(names))


def _backend_of(layer: Any, vllm_config: "VllmConfig") -> str:
    name = backends.name_of(layer)
    if name == backends.CPU:
        return f"{name}/{backends.cpu_isa(layer, vllm_config)}"
    if backends.keeps_state(layer):
        states = states_of(layer, vllm_config.parallel_config.tensor_parallel_size)
        kept = ["x".join(map(str, state.shape)) + f":{_name(state.dtype)}" for state in states]
        return "/".join([name, *kept, *_drafts(vllm_config)])
    layout = getattr(vllm_config.cache_config, "kv_cache_layout", None) or ""  # such as "LBHNC"; older vLLMs: none
    return "/".join(filter(None, (name, layout.replace("L", "").replace("B", ""))))


def _drafts(vllm_config: "VllmConfig") -> list[str]:
    settings = vllm_config.speculative_config
    return [f"{DRAFTS} {settings.num_speculative_tokens}"] if settings is not None else []


def _kv_cache_dtype(vllm_config: "VllmConfig") -> str:
    """The KV cache's dtype, with vLLM's `auto` resolved to the model's, so that the two are equal to a peer."""
    dtype = str(vllm_config.cache_config.cache_dtype)
    return _name(vllm_config.model_config.dtype) if dtype == "auto" else dtype


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _plain(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value
