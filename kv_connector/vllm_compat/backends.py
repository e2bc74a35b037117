"""Which attention backend, and which kernel of it, keeps a layer's KV: that decides what its bytes mean."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

CPU = "CPU_ATTN"


def name_of(layer: Any) -> str:
    """Return the name of a layer's backend, such as `FLASH_ATTN`; empty for what is no attention layer."""
    return str(layer.get_attn_backend().get_name()) if hasattr(layer, "get_attn_backend") else ""


def keeps_state(layer: Any) -> bool:
    """Whether a layer is a recurrent one, as vLLM's `MambaBase` has them: no hook of a connector is called for it."""
    return hasattr(layer, "get_state_shape")


def cpu_isa(layer: Any, vllm_config: "VllmConfig") -> str:
    """Return the instruction set of a layer's CPU kernels, such as `amx`.

    Source:
        `CPUAttentionMetadataBuilder._set_isa_to_layers` leaves it on the layer from vLLM 0.29 on; for earlier versions
        the choice of `v1/attention/backends/cpu_attn.py` is made again.
    """
    if isa := getattr(layer, "isa", None):
        return str(isa)
    from vllm.v1.attention.backends import cpu_attn

    cache = vllm_config.cache_config
    known = (vllm_config.model_config.dtype, cache.block_size, layer.head_size)
    try:
        return str(cpu_attn._get_attn_isa(*known, cache.cache_dtype))
    except TypeError:  # the last argument is younger than the oldest version that we support
        return str(cpu_attn._get_attn_isa(*known))
