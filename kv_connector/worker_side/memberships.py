"""Which KV cache group each layer that a worker registered is in.

vLLM's configuration lists the layers that keep KV of their own. One that reads another's (Gemma 3n's last layers)
stands in no list: it belongs to the group of the layer that it shares with, whose block table and window are its own.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.groups import block_tokens_of, groups_of, have_windows
from baton.kv_connector.worker_side.caches import LayerGroup

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def memberships(
    vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", names: Iterable[str]
) -> dict[str, LayerGroup]:
    """Return vLLM's layer name → its KV cache group, for the layers that were registered (`names`).

    Raises:
        LayoutError: nothing says which of several block tables, or windows, is that of a layer.
    """
    groups = groups_of(kv_cache_config, block_tokens_of(vllm_config, kv_cache_config))
    found = {
        name: LayerGroup(number, group.window, group.places)
        for number, (group, spec) in enumerate(zip(groups, kv_cache_config.kv_cache_groups, strict=True))
        for name in spec.layer_names
    }
    if len(groups) == 1 and not have_windows(groups):
        return found  # there is but one way to read a block
    layers = vllm_config.compilation_config.static_forward_context
    for name in [name for name in names if name not in found]:
        source = getattr(layers.get(name), "kv_sharing_target_layer_name", None)
        if source not in found:
            raise LayoutError(f"{name} keeps KV, but is in no KV cache group and shares with no layer that is in one")
        found[name] = found[source]
    return found
