"""How the blocks of each layer's KV may be divided among ranks and among blocks of other sizes, as vLLM tells it.

vLLM views every attention layer's KV as `[blocks, heads, tokens, content]` from 0.32 on; earlier versions' shapes
differ by backend, and only whole blocks of those are exchanged. On a CPU the view says less than it seems to: inside a
head's slab the kernels pack K and V as their instruction set likes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from baton.kv_connector.layout.regions import Division, Region, Sections
from baton.kv_connector.vllm_compat import backends

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from baton.kv_connector.worker_side.caches import KVCache

# Backends that keep a head's tokens in order; others may pack them, as ROCm's AITER kernels shuffle K.
_IN_ORDER = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")
NO_SECTIONS: Sections = ()
_AMX_COLUMNS = 16  # of V that lie side by side for a token


def total_kv_heads(vllm_config: "VllmConfig") -> int:
    """Return the KV heads of a layer over all tensor-parallel ranks; 1 where every rank has all of the cache, as MLA's.

    Also 1 for a model without attention, which vLLM says has none.
    """
    model = vllm_config.model_config
    return 1 if model.use_mla else max(1, int(model.get_total_num_kv_heads()))


def divided_among(kv_heads: int, regions: Iterable[Region]) -> tuple[int, ...]:
    """Return the numbers of KV heads and of parts of states, over all ranks: they say which ranks exchange something."""
    whole = ((0, kv_heads),)
    return tuple(sorted({parts for region in regions for _, parts in region.state_parts or whole}))


def divisions_of(
    vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", kv_caches: "Mapping[str, KVCache]"
) -> dict[str, Division]:
    """Return vLLM's layer name → how its blocks may be divided; a layer of which too little is known is left out."""
    layers = vllm_config.compilation_config.static_forward_context
    total, tp_size = total_kv_heads(vllm_config), vllm_config.parallel_config.tensor_parallel_size
    found = {}
    for name, spec in _specs(kv_cache_config):
        tensor = kv_caches.get(name)
        heads = getattr(spec, "num_kv_heads", 0)
        if (
            tensor is None
            or isinstance(tensor, tuple | list)
            or getattr(tensor, "ndim", 0) != 4
            or tensor.shape[1] != heads
        ):
            continue
        if heads != max(1, total // tp_size) or getattr(spec, "max_tp_shards", None) not in (None, total):
            continue  # a layer that counts its heads otherwise than the model
        if tp_size > total and len(kv_cache_config.kv_cache_groups) > 1:
            continue  # replicas hide how many heads such a layer has in all
        layer = layers[name]
        backend, sections = backends.name_of(layer), NO_SECTIONS
        if backend == backends.CPU:
            isa = backends.cpu_isa(layer, vllm_config)
            sections = cpu_sections(isa, tensor.shape[3] // 2, tensor.element_size())
        found[name] = Division(total, None if backend in _IN_ORDER else sections)
    return found


def cpu_sections(isa: str, head_size: int, itemsize: int) -> Sections:
    """Return the sections of a head's slab as one of vLLM's CPU kernels fills it; empty for those not looked into.

    Source:
        Read off the bytes that `cpu_attn_reshape_and_cache` of vLLM 0.32 writes (`tests/unit/kv_connector`).
    """
    if isa == "vec":  # K transposed, a row per dimension; V a row per token
        return (head_size, itemsize), (1, head_size * itemsize)
    if isa == "amx" and head_size % _AMX_COLUMNS == 0:  # K in tiles of 16 tokens, V in bands of 16 columns
        return (1, head_size * itemsize), (head_size // _AMX_COLUMNS, _AMX_COLUMNS * itemsize)
    return ()


def _specs(kv_cache_config: "KVCacheConfig") -> Iterator[tuple[str, Any]]:
    for group in kv_cache_config.kv_cache_groups:
        by_layer = getattr(group.kv_cache_spec, "kv_cache_specs", {})  # of layers that differ in size only
        for name in group.layer_names:
            yield name, by_layer.get(name, group.kv_cache_spec)
