"""What a recurrent layer keeps, and how tensor-parallel ranks divide it, as vLLM's layers tell it.

A convolution's state has *channels*, in sections one behind the other (x, B and C of Mamba2; q, k and v of a delta
net), of which each is divided by itself: a rank's channels lie together in its own block, but not in a block of all
channels. It is kept channel by channel (`DS`) or token by token (`SD`). A temporal state is divided by heads.

States of a layer of an unknown kind, or whose shapes are not what its attributes say, travel whole.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from baton.kv_connector.vllm_compat import backends

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig


class Section(NamedTuple):
    """Channels that are divided among ranks by themselves."""

    parts: int  # of all ranks together; fewer than ranks: each has replicas
    channels: int  # of a part

    def channels_of_rank(self, tp_size: int) -> int:
        return max(1, self.parts // tp_size) * self.channels


class State(NamedTuple):
    """One of a layer's states."""

    shape: tuple[int, ...]  # over all ranks together; this rank's where `parts` is empty
    dtype: "torch.dtype"
    nbytes: int  # of this rank
    parts: tuple[tuple[int, int], ...]  # see `Region.state_parts`


def states_of_layers(vllm_config: "VllmConfig") -> Mapping[str, list[State]]:
    """Return vLLM's layer name → its states, for recurrent layers."""
    layers = vllm_config.compilation_config.static_forward_context
    tp_size = vllm_config.parallel_config.tensor_parallel_size
    return {name: states_of(layer, tp_size) for name, layer in layers.items() if backends.keeps_state(layer)}


def states_of(layer: Any, tp_size: int) -> list[State]:
    """Return a recurrent layer's states, in their order in a block."""
    shapes = [tuple(shape) for shape in layer.get_state_shape()]
    whole = [State(s, d, prod(s) * d.itemsize, ()) for s, d in zip(shapes, layer.get_state_dtype(), strict=True)]
    if getattr(layer, "is_kv_cache_tp_replicated", False):
        return whole
    try:
        conv, heads = _division(layer)
    except AttributeError:  # a layer of another version, or of another make
        return whole
    kinds = [kind for kind in ((conv, (0, 1)), ([Section(heads, 1)] if heads else [], (0,))) if kind[0]]
    if len(kinds) != len(whole):
        return whole  # it keeps something besides
    divided = [_divided(state, sections, axes, tp_size) for state, (sections, axes) in zip(whole, kinds, strict=True)]
    return whole if None in divided else [state for state in divided if state is not None]


def _division(layer: Any) -> tuple[list[Section], int]:
    """Return the sections of the convolution's channels, and the heads of the temporal state; none: there is no such state.

    Source:
        The loaders of `conv1d` and the shapes of vLLM 0.32: `MambaMixer2`, `MambaMixer`, `ShortConv`,
        `GatedDeltaNetAttention` and what derives from it, `LinearAttention`.
    """
    match backends.name_of(layer):
        case "MAMBA2_ATTN":  # the layer's own `n_groups` counts replicas
            groups = Section(layer.norm.n_groups, layer.ssm_state_size)
            return [Section(layer.num_heads, layer.head_dim), groups, groups], layer.num_heads
        case "GDN_ATTN" if hasattr(layer, "num_k_heads"):
            keys = Section(layer.num_k_heads, layer.head_k_dim)
            return [keys, keys, Section(layer.num_v_heads, layer.head_v_dim)], layer.num_v_heads
        case "GDN_ATTN":  # of Kimi's kind
            return [Section(layer.num_heads, layer.head_dim)] * 3, layer.num_heads
        case "MAMBA1_ATTN":
            return [Section(layer.intermediate_size, 1)], layer.intermediate_size
        case "SHORT_CONV_ATTN":
            return [Section(layer.conv_dim, 1)], 0
        case "LINEAR_ATTN" | "BAILING_LINEAR_ATTN":
            return [], layer.num_heads
    return [], 0


def _divided(state: State, sections: list[Section], axes: Sequence[int], tp_size: int) -> State | None:
    """Say of what parts a state consists that is divided along one of its axes; `None` if its shape is another."""
    mine = sum(section.channels_of_rank(tp_size) for section in sections)
    found = [axis for axis in axes if state.shape[axis] == mine]
    if len(found) != 1 or any(section.parts % tp_size and tp_size % section.parts for section in sections):
        return None
    before, after = state.shape[: found[0]], state.shape[found[0] + 1 :]
    everything = sum(section.parts * section.channels for section in sections)
    row = prod(after) * state.dtype.itemsize
    parts = tuple((section.channels * row, section.parts) for section in sections) * prod(before)
    return state._replace(shape=(*before, everything, *after), parts=parts)
