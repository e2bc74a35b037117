"""The KV caches that a worker registered, as plain integers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from kv_connector.errors import LayoutError
from kv_connector.layout import Division, Region, Span, regions_of_tensor, storage_spans, unique_regions

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Every KV region of one worker. A *layer* here is what vLLM calls by one name and hooks once."""

    layer_of: Mapping[str, int]  # vLLM's layer name → index, in vLLM's order
    regions: tuple[Region, ...]  # each buffer once, in layer order
    num_blocks: int  # scheduler blocks in the pool
    block_tokens: int

    @property
    def num_layers(self) -> int:
        """Layers with regions of their own; a layer that only aliases another's KV has none."""
        return len(self.by_layer())

    @property
    def spans(self) -> Sequence[Span]:
        """The memory to register with the transfer engine."""
        return storage_spans(self.regions)

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block of one layer, all of its regions together; the largest layer counts."""
        return max(sum(region.block_bytes for region in layer) for layer in self.by_layer())

    def by_layer(self) -> list[list[Region]]:
        """The regions of each layer."""
        layers: dict[int, list[Region]] = {}
        for region in self.regions:
            layers.setdefault(region.layer, []).append(region)
        return [layers[layer] for layer in sorted(layers)]


def describe(
    kv_caches: Mapping[str, "torch.Tensor"],
    *,
    num_blocks: int,
    block_tokens: int,
    divisions: Mapping[str, Division] = MappingProxyType({}),
) -> Caches:
    """Read the layout off the tensors that vLLM allocated.

    Args:
        kv_caches: vLLM's layer name → KV tensor, as passed to `register_kv_caches`.
        num_blocks: Scheduler blocks in the pool.
        block_tokens: Tokens of a scheduler block.
        divisions: vLLM's layer name → how its blocks may be divided.

    Raises:
        LayoutError: a tensor is laid out in a way that cannot be pushed.
    """
    found: list[Region] = []
    layer_of: dict[str, int] = {}
    for name, tensor in kv_caches.items():
        if not hasattr(tensor, "data_ptr"):
            raise LayoutError(f"{name} keeps several tensors (a recurrent state): it cannot be disaggregated yet")
        regions = regions_of_tensor(
            name=name,
            layer=len(set(layer_of.values())),
            base_addr=tensor.data_ptr(),
            shape=tuple(tensor.shape),
            strides=tensor.stride(),
            itemsize=tensor.element_size(),
            num_blocks=num_blocks,
            division=divisions.get(name),
        )
        original = next((r for r in found if r.base_addr == regions[0].base_addr), None)
        layer_of[name] = original.layer if original else regions[0].layer
        found.extend(regions)
    return Caches(
        layer_of=layer_of,
        regions=unique_regions(found),
        num_blocks=num_blocks,
        block_tokens=block_tokens,
    )
