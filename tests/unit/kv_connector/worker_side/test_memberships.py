"""Which KV cache group a layer is in: as vLLM's own configuration has it, for layers too that read another's KV."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.core.kv_cache_utils import _get_kv_cache_groups_uniform_page_size
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.worker.utils import add_kv_sharing_layers_to_kv_cache_groups

from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.windows import OF_A_STATE
from baton.kv_connector.worker_side.caches import LayerGroup, describe
from baton.kv_connector.worker_side.worker_factory import memberships

COMMON: dict[str, Any] = {"num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
FULL = FullAttentionSpec(block_size=16, **COMMON)
WINDOW = SlidingWindowSpec(block_size=16, sliding_window=64, **COMMON)
# As Gemma 3n: the last layers read what the last of their kind before them has written.
OWNERS = {"layers.0": FULL, "layers.1": WINDOW, "layers.2": FULL, "layers.3": WINDOW}
SHARERS = {"layers.4": "layers.2", "layers.5": "layers.3"}
BLOCKS = 6


def engine(shares: Mapping[str, str] = SHARERS) -> Any:
    layers = {
        name: SimpleNamespace(kv_sharing_target_layer_name=shares.get(name)) for name in (*OWNERS, *SHARERS, "stray")
    }
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=16),
        compilation_config=SimpleNamespace(static_forward_context=layers),
    )


def cache(specs: Mapping[str, Any] = OWNERS) -> Any:
    """The KV cache configuration that vLLM makes for such layers: the sharers are in none of its lists."""
    return SimpleNamespace(kv_cache_groups=_get_kv_cache_groups_uniform_page_size(dict(specs)))


def tensors() -> dict[str, torch.Tensor]:
    """The groups' layers of one number lie in the same memory, as vLLM's allocator puts them."""
    slots = [torch.zeros(BLOCKS, 2, 16, 16) for _ in range(2)]
    owned = {name: slots[number // 2] for number, name in enumerate(OWNERS)}
    return owned | {name: owned[source] for name, source in SHARERS.items()}


def test_a_layer_that_shares_is_in_the_group_of_the_layer_it_reads() -> None:
    """As vLLM itself has it, once a worker has added such layers to its copy of the groups."""
    config, theirs = cache(), cache()
    add_kv_sharing_layers_to_kv_cache_groups(SHARERS, theirs.kv_cache_groups)

    found = memberships(engine(), config, [*OWNERS, *SHARERS])

    assert "layers.5" not in {name for group in config.kv_cache_groups for name in group.layer_names}
    assert {name: member.group for name, member in found.items()} == {
        name: number for number, group in enumerate(theirs.kv_cache_groups) for name in group.layer_names
    }
    assert found["layers.5"] == LayerGroup(found["layers.3"].group, 64)
    assert found["layers.4"] == found["layers.2"]


def test_memory_that_is_shared_is_pushed_once_and_released_by_its_owner() -> None:
    """Counted to the first group, a sharer in a window's memory would release the layer of that group that lies there."""
    caches = describe(
        tensors(),
        num_blocks=BLOCKS,
        block_tokens=16,
        groups=memberships(engine(), cache(), [*OWNERS, *SHARERS]),
    )

    assert [region.name for region in caches.regions] == [*OWNERS]
    assert {name: caches.layer_of[name] for name in SHARERS} == {
        name: caches.layer_of[source] for name, source in SHARERS.items()
    }


@pytest.mark.parametrize("specs", [OWNERS, {"layers.0": WINDOW}], ids=["several groups", "a window"])
def test_a_layer_of_which_nothing_is_known_is_refused(specs: Mapping[str, Any]) -> None:
    """Its blocks might be read by the wrong table."""
    with pytest.raises(LayoutError, match="stray keeps KV, but is in no KV cache group"):
        memberships(engine(), cache(specs), [*specs, "stray"])


def test_with_one_group_and_no_window_every_layer_reads_alike() -> None:
    """Nothing more need be known of a layer."""
    assert memberships(engine(), cache({"layers.0": FULL}), ["layers.0", "stray"]) == {"layers.0": LayerGroup()}


def test_a_state_is_read_with_a_window_of_its_own() -> None:
    """Beside layers that attend to everything, in blocks of another number of tokens."""
    state = MambaSpec(block_size=4096, shapes=((2, 2),), dtypes=(torch.float32,))
    groups = [
        SimpleNamespace(layer_names=names, kv_cache_spec=spec)
        for names, spec in ((["layers.0"], state), (["layers.1"], FULL))
    ]

    found = memberships(engine(), SimpleNamespace(kv_cache_groups=groups), ["layers.0", "layers.1"])

    assert found == {"layers.0": LayerGroup(0, OF_A_STATE), "layers.1": LayerGroup(1)}
