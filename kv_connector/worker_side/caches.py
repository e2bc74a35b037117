"""The KV caches that a worker registered, as plain integers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from baton.kv_connector.layout.regions import (
    Division,
    Region,
    Span,
    regions_of_tensor,
    storage_spans,
    unique_regions,
)
from baton.kv_connector.layout.windows import EVERYTHING
from baton.kv_connector.vllm_compat.states import State

if TYPE_CHECKING:
    import torch

    KVCache = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]


class LayerGroup(NamedTuple):
    """The KV cache group of a layer, by number, its window (`layout/windows.py`) and its blocks' places (`layout/groups.py`)."""

    group: int = 0
    window: int = EVERYTHING
    places: int = 1


ONLY = LayerGroup()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Every KV region of one worker. A *layer* here is what vLLM calls by one name and hooks once."""

    layer_of: Mapping[str, int]  # vLLM's layer name → index, in vLLM's order; a drafter's layers are left out
    regions: tuple[Region, ...]  # each buffer once, in layer order
    num_blocks: int  # scheduler blocks in the pool
    block_tokens: int
    borders: frozenset[int] = frozenset()  # where allocations begin

    @property
    def num_layers(self) -> int:
        """Layers with regions of their own; a layer that only aliases another's KV has none."""
        return len(self.by_layer())

    @property
    def spans(self) -> Sequence[Span]:
        return storage_spans(self.regions, self.borders)

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block of one layer, all of its regions together; the largest layer counts."""
        return max(sum(region.block_bytes for region in layer) for layer in self.by_layer())

    def by_layer(self) -> list[list[Region]]:
        layers: dict[int, list[Region]] = {}
        for region in self.regions:
            layers.setdefault(region.layer, []).append(region)
        return [layers[layer] for layer in sorted(layers)]


def tensors_of(kv_cache: "KVCache") -> "tuple[torch.Tensor, ...]":
    """Return the tensors that a layer keeps: one, K and V apart as vllm-ascend has them, or a recurrent layer's states.

    From vLLM 0.32 on a layer's states are one tensor of bytes, before that a list.
    """
    return tuple(kv_cache) if isinstance(kv_cache, tuple | list) else (kv_cache,)


def describe(
    kv_caches: "Mapping[str, KVCache]",
    *,
    num_blocks: int,
    block_tokens: int,
    divisions: Mapping[str, Division] = MappingProxyType({}),
    groups: Mapping[str, LayerGroup] = MappingProxyType({}),
    drafter: str = "",
    draft_layers: Collection[str] = (),
    states: Mapping[str, Sequence[State]] = MappingProxyType({}),
) -> Caches:
    """Read the layout off the tensors that vLLM allocated. Mappings are by vLLM's layer name, blocks the scheduler's.

    The hooks of `draft_layers` tell nothing: each pass of the drafter calls them. Without `groups` there is one. Raises
    `LayoutError` if a tensor is laid out in a way that cannot be pushed.
    """
    found: list[Region] = []
    layer_of: dict[str, int] = {}
    borders: set[int] = set()
    for name, kv_cache in kv_caches.items():
        tensors = tensors_of(kv_cache)
        group, window, places = groups.get(name, ONLY)
        regions = [
            replace(region, group=group, window=window, places=places)
            for number, tensor in enumerate(tensors)
            for region in regions_of_tensor(
                name=name if len(tensors) == 1 else f"{name}.{number}",
                layer=len(set(layer_of.values())),
                base_addr=tensor.data_ptr(),
                shape=tuple(tensor.shape),
                strides=tensor.stride(),
                itemsize=tensor.element_size(),
                num_blocks=num_blocks,
                division=divisions.get(name),
            )
        ]
        borders |= {tensor.untyped_storage().data_ptr() for tensor in tensors}
        if name in states:
            regions = _with_state_parts(regions, states[name])
        if name in draft_layers:
            regions = [replace(region, drafter=drafter) for region in regions]
        address = group, regions[0].base_addr
        original = next((r for r in found if (r.group, r.base_addr) == address), None)
        layer_of[name] = original.layer if original else regions[0].layer
        found.extend(regions)
    return Caches(
        layer_of={name: layer for name, layer in layer_of.items() if name not in draft_layers},
        regions=unique_regions(found),
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        borders=frozenset(borders),
    )


def _with_state_parts(regions: Sequence[Region], states: Sequence[State]) -> list[Region]:
    """Say of what parts a layer's states consist, which are a region each or one together."""
    shares = [states] if len(regions) == 1 else [[state] for state in states]
    if [region.block_bytes for region in regions] != [sum(state.nbytes for state in share) for share in shares]:
        return [*regions]  # there is something between them
    return [
        replace(region, state_parts=tuple(part for state in share for part in state.parts))
        for region, share in zip(regions, shares, strict=True)
    ]
