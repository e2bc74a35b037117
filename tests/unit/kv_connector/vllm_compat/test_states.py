"""States divided among ranks: copied as planned, every element is where vLLM's own shapes and loaders put it.

What lies where in a rank's block is built with vLLM: `MambaStateShapeCalculator` has the shapes, and the loaders of `conv1d`
say which of the model's channels each of a rank's is. Elements are numbers that occur once.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from vllm.model_executor.layers.mamba import mamba_utils
from vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn import _make_fused_conv1d_weight_loader
from vllm.model_executor.layers.mamba.mamba_mixer2 import mamba_v2_sharded_weight_loader
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator

from baton.contracts.kv_transfer import Grid
from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.copy_plan import plan_units
from baton.kv_connector.layout.pairing import Side, pair, shares_of
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.layout.tp_mapping import sources
from baton.kv_connector.layout.windows import OF_A_STATE
from baton.kv_connector.protocol.messages import Rank
from baton.kv_connector.vllm_compat.states import states_of
from baton.kv_connector.worker_side.divisions import divided_among

WIDTH, POOL = 4, 3  # taps of a convolution; blocks
SIZES = (1, 2, 4)
TYPES = (torch.bfloat16, torch.float32)
Shapes = Sequence[tuple[int, ...]]


class Kind(NamedTuple):
    """A kind of layer: its backend and attributes, vLLM's shapes, and which of the model's channels a rank has."""

    backend: str
    attributes: dict[str, Any]
    shapes: Callable[[int], Shapes]  # of the tensor-parallel size
    channels: Callable[[int, int], Sequence[int]] | None = None  # of the tensor-parallel size and the rank
    sizes: Sequence[int] = SIZES

    def layer(self, tp_size: int, **changes: Any) -> Any:
        named, shapes = SimpleNamespace(get_name=lambda: self.backend), list(self.shapes(tp_size))
        given = {
            "get_attn_backend": lambda: named,
            "get_state_shape": lambda: shapes,
            "get_state_dtype": lambda: TYPES[: len(shapes)],
        }
        return SimpleNamespace(**given | self.attributes | changes)

    def side(self, tp_size: int, tp: int = 0, spare: int = 0, **changes: Any) -> Side:
        states = states_of(self.layer(tp_size), tp_size)
        nbytes = sum(state.nbytes for state in states)
        region = Region(
            name="l0",
            layer=0,
            base_addr=0,
            block_bytes=nbytes,
            stride_bytes=nbytes + spare,
            num_blocks=POOL,
            window=OF_A_STATE,
            state_parts=tuple(part for state in states for part in state.parts),
        )
        return Side(Rank(tp=tp, tp_size=tp_size), [replace(region, **changes)], 16)

    def block(self, tp_size: int, tp: int) -> bytes:
        """What a rank's block holds: of each element its number in the state of a model on one rank."""
        found = []
        for number, (mine, whole) in enumerate(zip(self.shapes(tp_size), self.shapes(1), strict=True)):
            elements = np.arange(prod(whole), dtype=(np.int16, np.int32)[number]).reshape(whole)
            if self.channels and number == 0:
                part = elements.take(self.channels(tp_size, tp), axis=whole.index(max(whole)))
            else:
                part = np.split(elements, tp_size)[tp]
            assert part.shape == tuple(mine)
            found.append(np.ascontiguousarray(part).tobytes())
        return b"".join(found)


def loaded(load: Callable[[torch.Tensor, torch.Tensor], None], mine: int, everything: int) -> list[int]:
    """Return which channels one of vLLM's loaders of weights gives to a rank, in their order there."""
    numbers = torch.full((mine, 1, 1), -1)
    load(numbers, torch.arange(everything).reshape(-1, 1, 1))
    return [int(number) for number in numbers.flatten()]


def mamba2(groups: int, sizes: Sequence[int] = SIZES) -> Kind:
    heads, size, state = 8, 4, 3

    def channels(tp_size: int, tp: int) -> list[int]:
        extra = MambaStateShapeCalculator.extra_groups_for_head_shards(groups, tp_size)
        group = (groups + extra) * state, extra * state, extra > 0
        load = mamba_v2_sharded_weight_loader([(heads * size, 0, False), group, group], tp_size, tp)
        return loaded(load, (heads * size + 2 * group[0]) // tp_size, heads * size + 2 * groups * state)

    norm = SimpleNamespace(n_groups=groups)
    return Kind(
        "MAMBA2_ATTN",
        {"num_heads": heads, "head_dim": size, "ssm_state_size": state, "norm": norm},
        lambda tp_size: MambaStateShapeCalculator.mamba2_state_shape(
            tp_size, heads * size, groups, heads, size, state, WIDTH
        ),
        channels,
        sizes,
    )


def delta_net() -> Kind:
    keys, values, key_size, value_size = 4, 8, 3, 5
    dims = keys * key_size, keys * key_size, values * value_size

    def channels(tp_size: int, tp: int) -> list[int]:
        load = mamba_v2_sharded_weight_loader([(dim, 0, False) for dim in dims], tp_size, tp)
        return loaded(load, sum(dims) // tp_size, sum(dims))

    return Kind(
        "GDN_ATTN",
        {"num_k_heads": keys, "num_v_heads": values, "head_k_dim": key_size, "head_v_dim": value_size},
        lambda tp_size: MambaStateShapeCalculator.gated_delta_net_state_shape(
            tp_size, keys, values, key_size, value_size, WIDTH
        ),
        channels,
    )


def kimi() -> Kind:
    heads, size = 4, 6
    dims = [heads * size] * 3

    def channels(tp_size: int, tp: int) -> list[int]:
        load = _make_fused_conv1d_weight_loader(dims, tp_size, tp)

        def all_three(param: torch.Tensor, weights: torch.Tensor) -> None:
            for shard, some in enumerate(weights.chunk(3)):
                load(param, some, shard)

        return loaded(all_three, sum(dims) // tp_size, sum(dims))

    return Kind(
        "GDN_ATTN",
        {"num_heads": heads, "head_dim": size},
        lambda tp_size: MambaStateShapeCalculator.kda_state_shape(tp_size, heads, size, conv_kernel_size=WIDTH),
        channels,
    )


def in_order(total: int) -> Callable[[int, int], Sequence[int]]:
    """Divide channels as vLLM's `ColumnParallelLinear` divides its rows."""
    return lambda tp_size, tp: range(tp * total // tp_size, (tp + 1) * total // tp_size)


KINDS = {
    "mamba2": mamba2(4),
    "mamba2 of two groups": mamba2(2, (1, 2)),
    "mamba2 of one group": mamba2(1),
    "gated delta net": delta_net(),
    "kimi delta net": kimi(),
    "mamba1": Kind(
        "MAMBA1_ATTN",
        {"intermediate_size": 16},
        lambda tp_size: MambaStateShapeCalculator.mamba1_state_shape(tp_size, 16, 5, WIDTH),
        in_order(16),
    ),
    "short convolution": Kind(
        "SHORT_CONV_ATTN",
        {"conv_dim": 32},
        lambda tp_size: MambaStateShapeCalculator.short_conv_state_shape(tp_size, 32, WIDTH, 1),
        in_order(32),
    ),
    "linear attention": Kind(
        "LINEAR_ATTN",
        {"num_heads": 4},
        lambda tp_size: MambaStateShapeCalculator.linear_attention_state_shape(4, tp_size, 3),
    ),
}


@pytest.fixture(params=["SD", "DS"])
def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether vLLM keeps a convolution's state token by token or channel by channel."""
    monkeypatch.setattr(mamba_utils, "is_conv_state_dim_first", lambda: request.param == "DS")
    return str(request.param)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_element_arrives_where_the_rank_expects_it(kind: Kind) -> None:
    """Whatever the two sizes: complete, nothing twice, from the ranks that both nodes know of. Shapes are those of all ranks together."""
    for prefill, decode in product(kind.sizes, kind.sizes):
        assert [state.shape for state in states_of(kind.layer(decode), decode)] == [*map(tuple, kind.shapes(1))]
        for tp in range(decode):
            target = kind.side(decode, tp, spare=24)
            (region,) = target.regions
            arrived, shares, senders = bytearray(region.block_bytes), 0, set()
            written: set[int] = set()
            for other in range(prefill):
                found = pair(kind.side(prefill, other), target)
                there = kind.block(prefill, other)
                shares += found.shares
                for copy in plan_units(found.regions, [2], [1], [0]):
                    src, dst = copy.src - 2 * len(there), copy.dst - region.stride_bytes
                    place = range(dst, dst + copy.length)
                    assert written.isdisjoint(place)
                    written.update(place)
                    arrived[dst : place.stop] = there[src : src + copy.length]
                    senders.add(other)
            assert arrived == kind.block(decode, tp), (prefill, decode, tp)
            assert len(written) == region.block_bytes
            assert shares == shares_of(target, prefill)
            assert senders == {*sources(divided_among(99, target.regions), Grid(prefill), Grid(decode), tp)}


def test_between_equal_sizes_a_state_is_one_piece() -> None:
    """As before, so that nodes which say nothing of parts are still paired, and digests compared."""
    kind = KINDS["mamba2"]
    silent = kind.side(2, 1, state_parts=())

    for prefill, decode in product((silent, kind.side(2, 1)), repeat=2):
        made = pair(prefill, decode)
        assert made.whole
        assert made.shares == shares_of(decode, 2) == 1


@pytest.mark.parametrize(
    ("prefill", "decode", "words"),
    [
        (KINDS["mamba2"].side(2), KINDS["mamba2"].side(1, state_parts=()), "sizes 2 and 1 need to know how a layer"),
        (
            KINDS["mamba2"].side(2, window=9),
            KINDS["mamba2"].side(1, state_parts=(), window=9),
            "sizes 2 and 1 need to know",
        ),
        (
            KINDS["mamba2"].side(2, state_parts=()),
            KINDS["mamba2"].side(1, state_parts=()),
            "sizes 2 and 1 need to know",
        ),
        (KINDS["mamba2"].side(2), mamba2(1).side(1), "the two ranks' states consist of other parts"),
        (
            KINDS["mamba2"].side(2),
            KINDS["mamba2"].side(2)._replace(rank=Rank()),
            "in a rank of 1, whose parts would have",
        ),
        (KINDS["mamba2"].side(2)._replace(block_tokens=8), KINDS["mamba2"].side(1), "8 tokens in a block of a layer"),
        (KINDS["mamba2"].side(2, window=9), KINDS["mamba2"].side(1), "9 tokens in the attention window in the prefill"),
    ],
)
def test_what_cannot_be_mapped_is_refused(prefill: Side, decode: Side, words: str) -> None:
    """Before any byte moves."""
    with pytest.raises(LayoutError, match=words):
        pair(prefill, decode)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (KINDS["mamba2"], {"get_attn_backend": lambda: SimpleNamespace(get_name=lambda: "OTHER_ATTN")}),
        (KINDS["mamba2"], {"is_kv_cache_tp_replicated": True}),
        (KINDS["mamba2"], {"norm": None}),
        (KINDS["mamba2"], {"ssm_state_size": 5}),
        (KINDS["mamba2"], {"num_heads": 9}),
        (KINDS["linear attention"], {"num_heads": 3}),
        (
            KINDS["mamba2"],
            {"get_state_shape": lambda: [(4, 9)] * 3, "get_state_dtype": lambda: [torch.float32] * 3},
        ),
    ],
)
def test_a_layer_that_is_not_understood_has_states_without_parts(kind: Kind, changes: dict[str, Any]) -> None:
    """Another kind, another version's attributes, shapes that are not theirs: whole states are exchanged, or nothing."""
    layer = kind.layer(2, **changes)

    assert [(state.shape, state.parts) for state in states_of(layer, 2)] == [
        (tuple(shape), ()) for shape in layer.get_state_shape()
    ]
