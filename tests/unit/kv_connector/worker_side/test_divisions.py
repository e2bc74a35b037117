"""What a CPU kernel of vLLM really writes, beside what the connector says of it."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import _custom_ops as ops
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from baton.kv_connector.layout.regions import Division, Sections
from baton.kv_connector.worker_side.divisions import cpu_sections, divisions_of, total_kv_heads

HEADS, HEAD_SIZE, TOKENS = 2, 32, 64
GRAIN = 16  # tokens that a kernel may keep in an order of its own


def written(isa: str, dtype: torch.dtype, block: int, token: int) -> set[int]:
    """Bytes of a cache of two blocks that change when one token of head 1 is written."""
    cache = torch.zeros(2, HEADS, TOKENS, 2 * HEAD_SIZE, dtype=dtype)
    halves = cache.view(2, HEADS, 2 * TOKENS, -1).chunk(2, dim=2)
    key = torch.zeros(1, HEADS, HEAD_SIZE, dtype=dtype)
    key[:, 1] = 1.0
    slot = torch.tensor([block * TOKENS + token])
    ops.cpu_attn_reshape_and_cache(
        key, key.clone(), *halves, slot, isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
    )
    elements = torch.nonzero(cache.flatten()).flatten().tolist()
    return {element * dtype.itemsize + byte for element in elements for byte in range(dtype.itemsize)}


@pytest.mark.parametrize(("isa", "dtype"), [("vec", torch.float32), ("vec", torch.bfloat16), ("amx", torch.bfloat16)])
def test_tokens_lie_where_the_sections_say(isa: str, dtype: torch.dtype) -> None:
    """Sixteen tokens in a row fill exactly their part of every section of their head's slab, and nothing else."""
    if isa == "amx" and not torch.cpu._is_amx_tile_supported():
        pytest.skip("this CPU has no AMX")
    sections = cpu_sections(isa, HEAD_SIZE, dtype.itemsize)
    slab = 2 * HEAD_SIZE * TOKENS * dtype.itemsize
    for first in range(0, TOKENS, GRAIN):
        expected, at = set(), (HEADS + 1) * slab
        for count, size in sections:
            for _ in range(count):
                expected |= set(range(at + first * size, at + (first + GRAIN) * size))
                at += TOKENS * size
        found = itertools.chain.from_iterable(written(isa, dtype, 1, first + i) for i in range(GRAIN))
        assert set(found) == expected


def test_a_kernel_whose_layout_is_unknown_is_not_divided() -> None:
    """Blocks of other sizes are refused then."""
    assert cpu_sections("neon", 64, 4) == ()
    assert cpu_sections("amx", 24, 2) == ()


def test_a_kernel_that_this_machine_lacks_has_sections_too() -> None:
    """K in one row of tiles, V in bands of 16 columns."""
    assert cpu_sections("amx", 48, 2) == ((1, 96), (3, 32))


def engine(
    *, heads: int = 4, tp_size: int = 2, mla: bool = False, backend: str = "FLASH_ATTN", isa: str | None = None
) -> Any:
    """As much of an engine's configuration as is looked at."""
    named = SimpleNamespace(get_name=lambda: backend)
    layer = SimpleNamespace(isa=isa, head_size=8, get_attn_backend=lambda: named)
    return SimpleNamespace(
        model_config=SimpleNamespace(use_mla=mla, get_total_num_kv_heads=lambda: heads, dtype=torch.float32),
        cache_config=SimpleNamespace(block_size=16, cache_dtype="auto"),
        parallel_config=SimpleNamespace(tensor_parallel_size=tp_size),
        compilation_config=SimpleNamespace(static_forward_context={"l0": layer}),
    )


def cache_of(local_heads: int) -> Any:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=local_heads, head_size=8, dtype=torch.float32)
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=["l0"], kv_cache_spec=spec)])


@pytest.mark.parametrize(
    ("config", "sections"),
    [
        (engine(), None),
        (engine(backend="CPU_ATTN", isa="vec"), ((8, 4), (1, 32))),
        (engine(backend="ROCM_AITER_FA"), ()),  # unknown: its tokens may lie in any order
    ],
)
def test_a_layers_blocks_are_divided_by_heads(config: Any, sections: Sections | None) -> None:
    """The view says how many this rank has, the model how many there are."""
    assert divisions_of(config, cache_of(2), {"l0": torch.zeros(3, 2, 16, 16)}) == {"l0": Division(4, sections)}
    assert total_kv_heads(engine(mla=True)) == 1
    assert total_kv_heads(engine(heads=0)) == 1  # nothing but recurrent layers


@pytest.mark.parametrize(
    ("local_heads", "shape"),
    [(2, (2, 3, 16, 2, 8)), (2, (3, 16, 2, 16)), (3, (3, 3, 16, 16))],
    ids=["an earlier version's shape", "heads elsewhere", "not the model's heads"],
)
def test_what_is_not_understood_is_left_out(local_heads: int, shape: tuple[int, ...]) -> None:
    """Whole blocks are exchanged, or nothing."""
    assert divisions_of(engine(), cache_of(local_heads), {"l0": torch.zeros(shape)}) == {}


@pytest.mark.parametrize(("tp_size", "groups", "is_divided"), [(8, 1, True), (8, 2, False), (4, 2, True)])
def test_replicas_are_divided_where_all_layers_have_as_many_heads(tp_size: int, groups: int, is_divided: bool) -> None:
    """With several groups a replica does not tell how many heads such a layer has in all."""
    cache = cache_of(1)
    cache.kv_cache_groups += [SimpleNamespace(layer_names=[], kv_cache_spec=None)] * (groups - 1)

    found = {"l0": Division(4, None)} if is_divided else {}
    assert divisions_of(engine(tp_size=tp_size), cache, {"l0": torch.zeros(3, 1, 16, 16)}) == found


def test_a_recurrent_layers_states_are_not_divided_by_heads() -> None:
    """As vLLM 0.32 registers them: of a shape that a layer with one head could have."""
    cache = cache_of(1)
    cache.kv_cache_groups[0].kv_cache_spec = MambaSpec(block_size=16, shapes=((2, 8),), dtypes=(torch.float32,))

    assert divisions_of(engine(heads=1, tp_size=1), cache, {"l0": torch.zeros(3, 1, 1, 64)}) == {}
